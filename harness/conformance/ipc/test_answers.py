"""Answers: each worker's own, in worker order, whole, to whoever asked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from harness.conformance.check import check
from harness.conformance.ipc.trial import SIZE
from harness.conformance.verdict import Kind, Violation

if TYPE_CHECKING:
    from harness.conformance.ipc.cell import IpcCell
    from harness.conformance.ipc.trial import Trial

LARGE_BYTES = 64 * 1024 * 1024
LARGE_S = 15.0
THREADS, TURNS, THREADS_S = 4, 25, 10.0
VALUES: tuple[Any, ...] = (
    None,
    True,
    2**80,
    -0.5,
    "text, Ünïcödé, \N{SNOWMAN}",
    b"bytes" * 50_000,
    [1, [2, (3, {"four": {5}})]],
    ValueError("an exception that is a value"),
)


@check(
    "ipc/smoke",
    must="A pool of one worker MUST start, answer one call, and close.",
    since="0.1",
    smoke=True,
)
def test_smoke(ipc: IpcCell) -> None:
    try:
        ipc.act(act_smoke, deadline=30)
    except Violation as violation:
        raise Violation(Kind.BROKEN, violation.message) from violation


def act_smoke(trial: Trial) -> None:
    with trial.pool(size=1) as bench:
        bench.answers("hello")


@check(
    "ipc/roundtrip",
    must="Arguments and results MUST arrive as they were sent, an exception that is a value included.",
    since="0.1",
)
def test_roundtrip(ipc: IpcCell) -> None:
    ipc.act(act_roundtrip)


def act_roundtrip(trial: Trial) -> None:
    with trial.pool() as bench:
        for value in VALUES:
            returned = bench.call("echo", value)
            if [_comparable(one) for one in returned] != [_comparable(value)] * SIZE:
                raise Violation(Kind.WRONG, f"sent {str(value)[:60]!r}, got back {str(returned)[:100]}")


def _comparable(value: Any) -> Any:
    return (type(value), value.args) if isinstance(value, BaseException) else value


@check(
    "ipc/order",
    must="A call MUST return one result per worker, in worker order, whichever worker is first.",
    since="0.1",
    reports=("vllm#57846",),
)
def test_order(ipc: IpcCell) -> None:
    ipc.act(act_order)


def act_order(trial: Trial) -> None:
    with trial.pool() as bench:
        for turn in range(3):
            bench.answers(f"turn {turn}", "answer_last_first", SIZE)


@check(
    "ipc/large",
    must="Requests and replies of 64 MiB MUST pass, in both directions at once, without blocking each other.",
    since="0.1",
)
def test_large(ipc: IpcCell) -> None:
    ipc.act(act_large, deadline=LARGE_S + 10)


def act_large(trial: Trial) -> None:
    block = bytes(range(256)) * (LARGE_BYTES // 256)
    with trial.pool(size=1) as bench:
        outcomes: list[Any] = [None] * 2

        def ask(turn: int) -> None:
            try:
                outcomes[turn] = bench.call("echo", block)
            except Violation as violation:
                outcomes[turn] = violation

        _together(ask, 2, LARGE_S * trial.patience)
        for outcome in outcomes:
            if isinstance(outcome, Violation):
                raise outcome
            if outcome != [block]:
                raise Violation(Kind.WRONG, "64 MiB came back changed")


@check(
    "ipc/threads",
    must="Calls from several threads at once MUST each get their own answers.",
    since="0.1",
    reports=("trl's pipe server",),
)
def test_threads(ipc: IpcCell) -> None:
    ipc.act(act_threads, deadline=THREADS_S + 5)


def act_threads(trial: Trial) -> None:
    with trial.pool() as bench:
        wrong: list[Violation] = []

        def ask(thread: int) -> None:
            for turn in range(TURNS):
                token = (thread, turn, "x" * (turn * 1000))
                try:
                    values = bench.call("answer", token)
                except Violation as violation:
                    wrong.append(violation)
                    return
                if values != [(index, token) for index in range(SIZE)]:
                    got = [value[1][:2] if isinstance(value, tuple) else value for value in values]
                    wrong.append(Violation(Kind.STALE, f"thread {thread} asked {token[:2]} and got {got}"))
                    return

        _together(ask, THREADS, THREADS_S * trial.patience)
        trial.evidence(threads=THREADS, calls=THREADS * TURNS, wrong=len(wrong))
        if wrong:
            raise wrong[0]


def _together(ask: Any, count: int, seconds: float) -> None:
    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
    if any(thread.is_alive() for thread in threads):
        raise Violation(Kind.HANG, f"calls from {count} threads at once did not end within {seconds:.0f} s")
