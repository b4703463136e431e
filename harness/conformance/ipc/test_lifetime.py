"""Lifetimes: nothing of a pool outlives its close, or the process that owned it; and pools leave no trace in it."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from harness.conformance.check import check
from harness.conformance.ipc.ahead import ORPHANS_S
from harness.conformance.verdict import Kind, Violation
from harness.faults import Victim

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.conformance.ipc.cell import IpcCell
    from harness.conformance.ipc.trial import Bench, Trial

PAIR = 2
GONE_S = 3.0
"""How long a process may take to end that has been told to."""
POOLS, POOLS_S = 50, 12.0
"""Pools made one after the other; fewer where they take longer than this many seconds."""
WARM = 2
_LOOK_EVERY_S = 0.02
_SHM = Path("/dev/shm")  # noqa: S108 - where shared memory is seen


@check(
    "ipc/close",
    must=(
        "close MUST end every worker and whatever it started, also while a worker is stuck in a call, and may be called"
        " again."
    ),
    since="0.1",
    reports=("ray#31738",),
)
def test_close(ipc: IpcCell) -> None:
    ipc.act_each({"idle workers": act_close_idle, "a worker that is stuck in a call": act_close_busy})


def act_close_idle(trial: Trial) -> None:
    bench = trial.bench(PAIR, needs=("pids",))
    bench.start(Victim)
    families = bench.call("beget")
    bench.close()
    _require_gone([worker for worker, _ in families], "worker")
    _require_gone([child for _, child in families], "child of a worker")
    trial.step("close again")
    bench.subject.close()


def act_close_busy(trial: Trial) -> None:
    bench = trial.bench(PAIR, needs=("pids",))
    bench.start(Victim)
    pids = bench.pids()
    with tempfile.TemporaryDirectory() as folder:
        _occupy(bench, folder)
        bench.close()
    _require_gone(pids, "worker")


@check(
    "ipc/parent-death",
    must=(
        "When the owner of a pool is killed (SIGKILL), its workers, idle or busy, whatever they started, their shared"
        " memory and the pool's sockets MUST be gone within 5 seconds."
    ),
    since="0.1",
    reports=("vllm#55510", "vllm#34643", "vllm#19849"),
)
def test_parent_death(ipc: IpcCell) -> None:
    outcome = ipc.act_to_death(act_parent_death)
    blocks = [name for name in outcome.last("doomed") if (_SHM / name).exists()]
    for name in blocks:
        (_SHM / name).unlink(missing_ok=True)
    if blocks:
        raise Violation(
            Kind.LEAK, f"shared memory outlived its owner by {ORPHANS_S:g} s: {', '.join(blocks)}"
        )
    sockets = [name for name in outcome.files if "listener" in name]
    if sockets:
        raise Violation(Kind.LEAK, f"a socket outlived its owner by {ORPHANS_S:g} s: {', '.join(sockets)}")


def act_parent_death(trial: Trial) -> None:
    bench = trial.bench(PAIR)
    bench.start(Victim)
    bench.call("beget")
    blocks = bench.call("share")
    with tempfile.TemporaryDirectory() as folder:
        _occupy(bench, folder)
        trial.doomed(blocks)
        os.kill(os.getpid(), signal.SIGKILL)


@check(
    "ipc/resources",
    must=(
        "Descriptors, threads, child processes (zombies among them) and shared memory MUST NOT grow with the number of"
        " pools that have been made and closed."
    ),
    since="0.1",
    reports=("ray#31738",),
)
def test_resources(ipc: IpcCell) -> None:
    ipc.act(act_resources, deadline=40)


def act_resources(trial: Trial) -> None:
    def once() -> None:
        with trial.pool(size=1) as bench:
            bench.answers("here")

    for _ in range(WARM):
        once()
    before, made, until = _holdings(), WARM, time.monotonic() + POOLS_S * trial.patience
    while made < POOLS and time.monotonic() < until:
        once()
        made += 1
    grown = _growth(before, until=time.monotonic() + GONE_S)
    trial.evidence(pools=made, before=before, grown=grown)
    if grown:
        what = ", ".join(f"{count} {name}" for name, count in grown.items())
        raise Violation(Kind.LEAK, f"{made} pools were made and closed; there are more than before: {what}")


def _growth(before: dict[str, int], until: float) -> dict[str, int]:
    """What there is more of than before, once that has settled."""
    while True:
        now = _holdings()
        grown = {name: now[name] - before[name] for name in now if now[name] > before[name]}
        if not grown or time.monotonic() > until:
            return grown
        time.sleep(_LOOK_EVERY_S)


def _holdings() -> dict[str, int]:
    me = psutil.Process()
    children = me.children(recursive=True)
    zombies = 0
    for child in children:
        with contextlib.suppress(psutil.Error):
            zombies += child.status() == psutil.STATUS_ZOMBIE
    return {
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "children": len(children),
        "zombies": zombies,
        "mappings of shared memory": sum(f"{_SHM}/" in line for line in _maps()),
    }


def _maps() -> list[str]:
    maps = Path("/proc/self/maps")
    return maps.read_text().splitlines() if maps.exists() else []


def _require_gone(pids: Sequence[int], what: str) -> None:
    until = time.monotonic() + GONE_S
    while left := [pid for pid in pids if _runs(pid)]:
        if time.monotonic() > until:
            raise Violation(
                Kind.ORPHAN,
                f"{len(left)} of {len(pids)}: a {what} was there {GONE_S:g} s after close: pid {left[0]}",
            )
        time.sleep(_LOOK_EVERY_S)  # the end of somebody else's child is no event that one could wait for


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _occupy(bench: Bench, folder: str) -> None:
    """Have every worker but the last stuck in a call, of which a thread waits for the answer that never comes."""
    thread = threading.Thread(target=_ask_in_vain, args=(bench, folder), daemon=True)
    thread.start()
    while not Path(folder, "0").exists() and thread.is_alive():
        time.sleep(_LOOK_EVERY_S)


def _ask_in_vain(bench: Bench, folder: str) -> None:
    with contextlib.suppress(BaseException):
        bench.subject.call("hold", folder, (0,), timeout=600.0)
