"""Failures of a call: told to the caller as they are, at once, and of no consequence for the next call."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from harness.conformance.check import check
from harness.conformance.ipc.trial import MARGIN_S, SIZE, Bench
from harness.conformance.verdict import Kind, Violation
from harness.faults.raising import LONG_MESSAGE_BYTES

if TYPE_CHECKING:
    from harness.conformance.ipc.cell import IpcCell
    from harness.conformance.ipc.trial import Trial

ONE = (1,)
LATE_S, DEADLINE_S = 1.0, 0.3
"""A call takes the one and is given the other."""


@check(
    "ipc/error-envelope",
    must=(
        "An exception in a worker MUST reach the caller as an exception that gives its type, its whole message, where"
        " it was raised (the remote traceback), and its causes."
    ),
    since="0.1",
    reports=("trl#3433", "vllm#23985"),
)
def test_error_envelope(ipc: IpcCell) -> None:
    ipc.act(act_error_envelope)


def act_error_envelope(trial: Trial) -> None:
    wanted = {
        "type": "RuntimeError",
        "message": "the engine is not ready",
        "traceback": "raise_chained",
        "cause": "could not read the shard",
    }
    with trial.pool() as bench:
        told = bench.told_of("suffer", "raise-chained", ONE)
        absent = [what for what, text in wanted.items() if text not in told.text]
        whole = bench.told_of("suffer", "raise-long", ONE).text.count("x") >= LONG_MESSAGE_BYTES
        absent += [] if whole else ["a message of 300 kB, whole"]
        trial.evidence(seconds=told.seconds, absent=absent)
        if absent:
            raise Violation(Kind.MISSING, f"the caller is not told: {', '.join(absent)}")


@check(
    "ipc/blame",
    should="A failure SHOULD name every worker that failed, by index or process id.",
    since="0.1",
    reports=("vllm#23985", "vllm#53597"),
)
def test_blame(ipc: IpcCell) -> None:
    ipc.act(act_blame)


def act_blame(trial: Trial) -> None:
    with trial.pool() as bench:
        pids = bench.pids() if hasattr(bench.subject, "pids") else [None] * SIZE
        text = bench.told_of("suffer", "raise", (0, 2)).text
        named = [index for index in range(SIZE) if _names(text, index, pids[index])]
        trial.evidence(named=named)
        if named != [0, 2]:
            raise Violation(
                Kind.MISSING, f"workers 0 and 2 failed; the caller is told of {named or 'no worker'}"
            )


def _names(text: str, index: int, pid: int | None) -> bool:
    by_index = re.search(rf"(worker|rank|process|actor)\W{{0,3}}{index}\b", text, re.IGNORECASE)
    return bool(by_index) or (pid is not None and re.search(rf"\b{pid}\b", text) is not None)


@check(
    "ipc/drain",
    must=(
        "Whichever worker fails a call, first, middle or last, the calls after it MUST return their own answers: a"
        " reply that nobody read is never the answer to the next question."
    ),
    since="0.1",
    reports=("vllm#57846",),
)
def test_drain(ipc: IpcCell) -> None:
    ipc.act(act_drain)


def act_drain(trial: Trial) -> None:
    with trial.pool() as bench:
        for index in range(SIZE):
            bench.told_of("suffer", "raise", (index,), f"failed by {index}")
            bench.still_answers(f"worker {index} of {SIZE} failed")


@check(
    "ipc/unpicklable-result",
    must=(
        "A result that cannot be pickled, or not be rebuilt by the caller, MUST become a failure of that call, and the"
        " worker MUST live."
    ),
    since="0.1",
    reports=("vllm#26139",),
)
def test_unpicklable_result(ipc: IpcCell) -> None:
    ipc.act(act_unpicklable_result)


def act_unpicklable_result(trial: Trial) -> None:
    _fail_and_go_on(trial, "unpicklable-result", "undecodable-result", "result-exits")


@check(
    "ipc/unpicklable-exception",
    must="An exception that cannot be pickled MUST become a failure of that call, and the worker MUST live.",
    since="0.1",
    reports=("trl's pipe server",),
)
def test_unpicklable_exception(ipc: IpcCell) -> None:
    ipc.act(act_unpicklable_exception)


def act_unpicklable_exception(trial: Trial) -> None:
    _fail_and_go_on(trial, "unpicklable-exception", "hostile-reduce")


@check(
    "ipc/hostile-exception",
    must=(
        "An exception that cannot be rebuilt from its args, that ends whoever rebuilds it, or that cannot be printed,"
        " MUST become a failure of that call, and harm neither worker nor caller."
    ),
    since="0.1",
    reports=("trl's pipe server",),
)
def test_hostile_exception(ipc: IpcCell) -> None:
    ipc.act(act_hostile_exception)


def act_hostile_exception(trial: Trial) -> None:
    _fail_and_go_on(trial, "hostile-init", "hostile-str", "hostile-repr", "hostile-rebuild")


@check(
    "ipc/base-exception",
    must=(
        "SystemExit, KeyboardInterrupt, GeneratorExit and any other BaseException in a call MUST become an Exception in"
        " the caller, which they would else end, and the worker MUST live."
    ),
    since="0.1",
)
def test_base_exception(ipc: IpcCell) -> None:
    ipc.act(act_base_exception)


def act_base_exception(trial: Trial) -> None:
    _fail_and_go_on(trial, "raise-base", "system-exit", "keyboard-interrupt", "generator-exit")


@check(
    "ipc/deadline",
    must=(
        "A call that is not answered in time MUST raise when its deadline has passed, and the late answer MUST NOT be"
        " given to a later call."
    ),
    since="0.1",
    reports=("verl#7366", "UniRL#337", "vllm#57846"),
)
def test_deadline(ipc: IpcCell) -> None:
    ipc.act(act_deadline)


def act_deadline(trial: Trial) -> None:
    with trial.pool() as bench:
        told = bench.fails("wait", LATE_S, "late", timeout=DEADLINE_S)
        trial.evidence(deadline_seconds=DEADLINE_S, raised_after_seconds=told.seconds)
        if told.seconds > DEADLINE_S * trial.patience + MARGIN_S:
            raise Violation(Kind.HANG, f"a deadline of {DEADLINE_S} s was heeded after {told.seconds:.1f} s")
        bench.still_answers("a call that ran into its deadline")


@check(
    "ipc/post",
    must=(
        "A post MUST run before later calls and never be taken for their answer; when it fails, the post itself or the"
        " next call MUST say so."
    ),
    since="0.1",
    reports=("trl's pipe server",),
)
def test_post(ipc: IpcCell) -> None:
    ipc.act(act_post)


def act_post(trial: Trial) -> None:
    with trial.pool(needs=("post",)) as bench:
        for token in ("one", "two"):
            bench.subject.post("note", token)
        bench.answers("after two posts")
        noted = bench.call("noted")
        if noted != [(index, ["one", "two"]) for index in range(SIZE)]:
            raise Violation(Kind.MISSING, f"posted 'one' and 'two'; the workers know of {noted}")
        if not _says_so(bench):
            raise Violation(
                Kind.SILENT, "a post failed on worker 1, and the next call returned as if it had not"
            )
        bench.still_answers("a failed post")


def _says_so(bench: Bench) -> bool:
    try:
        bench.subject.post("suffer", "raise", ONE)
    except Exception:  # noqa: BLE001 - whatever it raises, it has said so
        return True
    try:
        bench.answers("after a failed post")
    except Violation as violation:
        return violation.kind is Kind.RAISED
    return False


def _fail_and_go_on(trial: Trial, *faults: str) -> None:
    """Each fault fails its call, before the deadline; then the same workers answer."""
    borne: list[str] = []
    with trial.pool() as bench:
        before = bench.pids() if hasattr(bench.subject, "pids") else None
        for fault in faults:
            trial.evidence(borne=borne)
            bench.told_of("suffer", fault, ONE, f"during {fault}")
            bench.still_answers(fault)
            if before is not None and bench.pids() != before:
                raise Violation(
                    Kind.DIED, f"{fault} cost a worker: pids {before} before, {bench.pids()} after"
                )
            borne.append(fault)
        trial.evidence(borne=borne)
