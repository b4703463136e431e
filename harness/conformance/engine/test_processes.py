"""Processes of an engine that are killed: requests end, health says so, nobody is left behind."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import psutil
import pytest

from harness.conformance.check import check
from harness.conformance.engine.load import ANSWER_S, Load
from harness.conformance.engine.stage import PROMPTS
from harness.conformance.verdict import Kind, Violation
from harness.subjects.vllm_client import Unreachable

if TYPE_CHECKING:
    from harness.conformance.engine.stage import EngineCell

pytestmark = pytest.mark.timeout(900)

TRUTH_S = 10.0
"""How long a health check may go on saying that a dead engine is well, before it is no delay but a lie."""
ORPHANS_S = 10.0


@check(
    "engine/worker-dies",
    must=(
        "When an engine worker is killed under load, every request MUST end with an answer or an error, and health"
        " MUST NOT go on saying 200."
    ),
    since="0.1",
    reports=("vllm#39863", "vllm#53157", "trl#3433"),
)
def test_worker_dies(engine: EngineCell) -> None:
    server = engine.server
    workers = server.client.collective("probe_identity").body["results"]
    try:
        with Load(server.client, [list(prompt) for prompt in PROMPTS], tokens=16) as load:
            load.wait_until_running()
            os.kill(max(workers, key=lambda worker: worker["index"])["pid"], signal.SIGKILL)
            seconds, said = _until_unwell(engine)
        engine.evidence.update(
            health_after_s=round(seconds, 2),
            health=said,
            requests=len(load.asked),
            unanswered=load.unanswered,
        )
    finally:
        engine.stage.drop_server()
    if load.unanswered:
        raise Violation(Kind.HANG, f"{load.unanswered} requests did not end within {ANSWER_S:.0f} s")
    if said == "200":
        raise Violation(Kind.SILENT, f"health still said 200, {TRUTH_S:.0f} s after a worker had been killed")


def _until_unwell(engine: EngineCell) -> tuple[float, str]:
    """How long health goes on saying 200, and what it says then."""
    begun = time.monotonic()
    while True:
        try:
            said = str(engine.server.client.health(seconds=2))
        except Unreachable as error:
            said = str(error)
        seconds = time.monotonic() - begun
        if said != "200" or seconds > TRUTH_S:
            return seconds, said


@check(
    "engine/orphans",
    must="When the server's own process is killed, all processes that it started MUST end within 10 seconds.",
    since="0.1",
    reports=("vllm#55510", "vllm#34643", "vllm#19849"),
)
def test_orphans(engine: EngineCell) -> None:
    server = engine.server
    processes = [psutil.Process(pid) for pid in server.family()]
    try:
        server.process.kill()
        server.process.wait(ORPHANS_S)
        _, alive = psutil.wait_procs(processes, timeout=ORPHANS_S)
        left = [
            process for process in alive if process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        ]
        engine.evidence.update(
            processes=len(processes), left=[" ".join(process.cmdline())[:60] for process in left]
        )
    finally:
        engine.stage.drop_server()
    if left:
        raise Violation(
            Kind.ORPHAN,
            f"{len(left)} of {len(processes)} processes outlived a server that was killed"
            f" {ORPHANS_S:.0f} s before: {engine.evidence['left'][0]}",
        )
