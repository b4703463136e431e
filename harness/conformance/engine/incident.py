"""A transfer that goes wrong on purpose, and what must hold afterwards whoever was at fault."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.conformance.engine.scoring import BOUND, Mismatch
from harness.conformance.verdict import Kind, Violation
from harness.ipc import WorkerFailed
from harness.subjects.vllm_client import Unreachable

if TYPE_CHECKING:
    from harness.conformance.engine.stage import EngineCell
    from harness.ipc.failure import Failure

LIMIT_S = 8.0
"""Limit of every wait of a transfer that is meant to fail."""
DEADLINE_S = 2 * LIMIT_S + 15
"""A rank may wait for its peers twice as long as for the engine; the rest is for a machine that is busy."""


@dataclass(frozen=True)
class Incident:
    """What came of it: how every trainer rank ended, by rank, and when the last one did."""

    failures: dict[int, Failure]
    seconds: float

    def messages(self) -> set[str]:
        """What the ranks that raised have said."""
        return {failure.message for failure in self.failures.values() if failure.kind == "raised"}


def provoke(engine: EngineCell, fault: str = "") -> Incident:
    """Run a transfer with a fault, on fresh weights; a rank that stands still is let go on afterwards."""
    pool = engine.trainer
    call = pool.begin("sync", engine.server.url, engine.stage.next_version(), LIMIT_S, "module-gather", fault)
    begun = time.monotonic()
    call.collect(DEADLINE_S)
    seconds = time.monotonic() - begun
    for pid in pool.pids():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    return Incident({failure.worker: failure for failure in call.failures()}, seconds)


def require_told(engine: EngineCell, incident: Incident, what: str, silent: tuple[int, ...] = ()) -> None:
    """Every rank but those in ``silent`` has raised, in time.

    Raises:
        Violation: a rank hung, or did not notice.
    """
    size = engine.scenario.trainer.world_size
    engine.evidence[what] = [round(incident.seconds, 2), sorted(incident.messages())[:1]]
    for rank in set(range(size)) - set(silent):
        failure = incident.failures.get(rank)
        if failure is None:
            raise Violation(Kind.SILENT, f"{what}: trainer rank {rank} took the transfer for a success")
        if failure.kind == "silent":
            raise Violation(Kind.HANG, f"{what}: trainer rank {rank} did not end within {DEADLINE_S:.0f} s")


def require_old_weights(engine: EngineCell, old: list[list[float]], what: str) -> None:
    """The engine serves what it served before, or refuses.

    Raises:
        Violation: it serves something else, or answers nothing within the deadline.
    """
    client = engine.server.client
    try:
        paused = client.ask("GET", "/is_paused", seconds=DEADLINE_S).body["is_paused"]
    except Unreachable as error:
        raise Violation(Kind.HANG, f"{what}: the engine does not answer: {error}") from error
    if paused:
        engine.evidence[f"{what}: engine"] = "paused"
        return
    now = engine.scores()
    gap = Mismatch.between(old, now).max
    if gap > BOUND[engine.scenario.trainer.dtype]:
        raise Violation(
            Kind.STALE, f"{what}: the engine serves neither refusal nor old weights: {gap:.3g} apart"
        )


def require_recovery(engine: EngineCell, what: str) -> None:
    """The next transfer succeeds, and the engine serves it.

    Raises:
        Violation: it does not.
    """
    try:
        engine.sync()
    except WorkerFailed as error:
        raise Violation(Kind.RAISED, f"{what}: the next transfer failed: {error.root.message}") from error
    found = engine.mismatch()
    bound = BOUND[engine.scenario.trainer.dtype]
    if found.max > bound:
        raise Violation(Kind.WRONG, f"{what}: after the next transfer the engine is {found.max:.3g} off")
