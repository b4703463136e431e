"""A transfer that fails in any phase, by anybody: told on both sides, in time, and without harm to what is served."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from harness.conformance.check import check
from harness.conformance.engine.faulty import Fault
from harness.conformance.engine.incident import (
    provoke,
    require_old_weights,
    require_recovery,
    require_told,
)
from harness.conformance.verdict import Kind, Violation

if TYPE_CHECKING:
    from harness.conformance.engine.stage import EngineCell

pytestmark = pytest.mark.timeout(900)

TOLD = "MUST be told to every trainer rank within the limit, leave the engine with its old weights or refusing to serve"
REPORTS = ("trl#6796", "trl#6913", "verl#7366", "UniRL#337")


@check(
    "engine/trainer-raises",
    must=f"An error on a trainer rank, in any phase of a transfer, {TOLD}, and let the next transfer succeed.",
    since="0.1",
    reports=REPORTS,
)
def test_trainer_raises(engine: EngineCell) -> None:
    faults = [Fault(0, phase, "raise") for phase in ("init", "start", "chunk", "finish", "resume")]
    for fault in [*faults, Fault(1, "chunk", "raise")]:
        what = f"trainer rank {fault.rank} raises at {fault.phase}"
        old = _fresh(engine)
        incident = provoke(engine, fault.text())
        require_told(engine, incident, what)
        if len(incident.messages()) > 1:
            raise Violation(Kind.WRONG, f"{what}: the ranks tell different things: {incident.messages()}")
        if fault.phase != "resume":  # then the engine has loaded, and only its service is missing
            require_old_weights(engine, old, what)
        require_recovery(engine, what)


@check(
    "engine/trainer-dies",
    must=f"The death of a trainer rank in the middle of a transfer {TOLD}, and let another trainer's succeed.",
    since="0.1",
    reports=REPORTS,
)
def test_trainer_dies(engine: EngineCell) -> None:
    for rank in (0, 1):
        _without_rank(engine, rank, "kill")


@check(
    "engine/trainer-stops",
    must=f"A trainer rank that stands still in the middle of a transfer {TOLD}, and let another trainer's succeed.",
    since="0.1",
    reports=REPORTS,
)
def test_trainer_stops(engine: EngineCell) -> None:
    for rank in (0, 1):
        _without_rank(engine, rank, "stop")


def _without_rank(engine: EngineCell, rank: int, action: str) -> None:
    what = f"trainer rank {rank}, {action} at a chunk"
    old = _fresh(engine)
    incident = provoke(engine, Fault(rank, "chunk", action).text())
    engine.stage.drop_trainer()
    require_told(engine, incident, what, silent=(rank,))
    require_old_weights(engine, old, what)
    require_recovery(engine, what)


@check(
    "engine/worker-raises",
    must=f"An error on one engine worker, in any phase of a transfer, {TOLD}, and let the next transfer succeed.",
    since="0.1",
    reports=("vllm#23985", "vllm#53597", "vllm#57846"),
)
def test_worker_raises(engine: EngineCell) -> None:
    try:
        for phase in ("chunk", "finish", "start", "init"):
            _with_worker(engine, phase, "raise")
    except Violation:
        engine.stage.drop_server()
        raise


@check(
    "engine/worker-stops",
    must=f"An engine worker that stands still in the middle of a transfer {TOLD}, and let the next transfer succeed.",
    since="0.1",
    reports=("verl#7366",),
)
def test_worker_stops(engine: EngineCell) -> None:
    _with_worker(engine, "chunk", "stop")


def _with_worker(engine: EngineCell, phase: str, action: str) -> None:
    """The last worker fails: it is no replica's first, where there are several to a replica."""
    what = f"engine worker, {action} at {phase}"
    old = _fresh(engine)
    if phase == "init":
        engine.trainer.call("leave")  # so that the next transfer meets the engine anew
    fault = {"worker": engine.scenario.layout.workers - 1, "phase": phase, "action": action}
    engine.server.client.collective("probe_arm", json.dumps(fault))
    incident = provoke(engine)
    for pid in engine.server.family():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    require_told(engine, incident, what)
    require_old_weights(engine, old, what)
    require_recovery(engine, what)


def _fresh(engine: EngineCell) -> list[list[float]]:
    """Serve the trainer's weights, then train on: what a transfer would bring differs from what is served."""
    engine.sync()
    old = engine.scores()
    for _ in range(2):
        engine.trainer.call("step")
    return old
