"""Deaths of workers: told to the caller at once, whatever the kind and the moment."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil

from harness.conformance.check import check
from harness.conformance.ipc.trial import MARGIN_S
from harness.conformance.verdict import Kind, Violation
from harness.faults import FailingStart

if TYPE_CHECKING:
    from harness.conformance.ipc.cell import IpcCell
    from harness.conformance.ipc.trial import Trial

PAIR = 2
STOPPED_S = 0.5


@check(
    "ipc/death",
    must=(
        "A worker that dies, in a call, half-way through its reply or while idle, by a signal or by exiting, MUST be"
        " reported by that call or the next one, before its deadline; a worker silently replaced has lost its weights."
    ),
    since="0.1",
    reports=("vllm#39863", "vllm#53157", "ray#31738"),
)
def test_death(ipc: IpcCell) -> None:
    ipc.act_each(
        {
            "kill in a call": act_kill,
            "exit(0) in a call": act_exit_zero,
            "segmentation fault in a call": act_segfault,
            "kill half-way through the reply": act_half_written,
            "kill while idle": act_kill_idle,
        }
    )


def act_kill(trial: Trial) -> None:
    _die_in_call(trial, "kill")


def act_exit_zero(trial: Trial) -> None:
    _die_in_call(trial, "exit-zero")


def act_segfault(trial: Trial) -> None:
    _die_in_call(trial, "segfault")


def act_half_written(trial: Trial) -> None:
    trial.require_python_transport()
    _die_in_call(trial, "half-written")


def _die_in_call(trial: Trial, fault: str, victim: int = 1) -> None:
    with trial.pool(size=PAIR) as bench:
        bench.answers("before")
        told = bench.told_of("suffer", fault, (victim,))
        trial.evidence(told_after_seconds=told.seconds)


def act_kill_idle(trial: Trial) -> None:
    with trial.pool(size=PAIR, needs=("pids",)) as bench:
        bench.answers("before")
        worker = psutil.Process(bench.pids()[1])
        worker.kill()
        _await_end(worker)
        told = bench.told_of("answer", "after")
        trial.evidence(told_after_seconds=told.seconds)


def _await_end(process: psutil.Process) -> None:
    """The process is this one's child or a fork server's: it may be reaped by whoever owns it."""
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        try:
            process.wait(0.01)
        except psutil.TimeoutExpired:
            continue


@check(
    "ipc/eof",
    must=(
        "The end of a worker MUST be noticed though other processes, workers started after it or children that it"
        " forked, have inherited its descriptors."
    ),
    since="0.1",
    reports=("trl's pipe server",),
)
def test_eof(ipc: IpcCell) -> None:
    ipc.act_each(
        {
            "the worker that was started first exits": act_first_exits,
            "a forked child stays behind": act_heir_stays,
        }
    )


def act_first_exits(trial: Trial) -> None:
    _die_in_call(trial, "exit-zero", victim=0)


def act_heir_stays(trial: Trial) -> None:
    _die_in_call(trial, "exit-leaving-child")


@check(
    "ipc/stopped",
    must=(
        "A stopped worker (SIGSTOP) MUST cost a call no more than its deadline, serve again when continued, and not"
        " keep close() from ending it."
    ),
    since="0.1",
)
def test_stopped(ipc: IpcCell) -> None:
    ipc.act(act_stopped)


def act_stopped(trial: Trial) -> None:
    with trial.pool(size=PAIR, needs=("pids",)) as bench:
        pid = bench.pids()[1]
        os.kill(pid, signal.SIGSTOP)
        told = bench.fails("answer", "stopped", timeout=STOPPED_S)
        if told.seconds > STOPPED_S * trial.patience + MARGIN_S:
            raise Violation(Kind.HANG, f"a deadline of {STOPPED_S} s was heeded after {told.seconds:.1f} s")
        os.kill(pid, signal.SIGCONT)
        bench.still_answers("a worker was stopped and continued")
        os.kill(pid, signal.SIGSTOP)


@check(
    "ipc/startup",
    must=(
        "A worker that cannot start, because its factory raises or its process dies, MUST be reported by start, with"
        " the factory's message, and nobody may stay behind."
    ),
    since="0.1",
    reports=("trl's pipe server",),
)
def test_startup(ipc: IpcCell) -> None:
    ipc.act_each({"the factory raises": act_factory_raises, "the process is killed": act_killed_at_start})


def act_factory_raises(trial: Trial) -> None:
    _fail_to_start(trial, "raise", "longer than the model's context")


def act_killed_at_start(trial: Trial) -> None:
    _fail_to_start(trial, "kill", "")


def _fail_to_start(trial: Trial, fault: str, reason: str) -> None:
    bench = trial.bench(PAIR)
    try:
        bench.start(FailingStart(fault, (1,)))
    except Violation as violation:
        if reason not in bench.start_error:
            raise Violation(
                Kind.MISSING, f"the factory's message is not told: {violation.message}"
            ) from violation
        return
    raise Violation(Kind.SILENT, f"worker 1 could not start ({fault}), and start returned")
