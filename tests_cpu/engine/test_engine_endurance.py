"""Hundreds of rounds, opt-in: ``HARNESS_ENGINE_ROUNDS=200 tox -e engine -- tests_cpu/engine -k endurance``.

Memory is compared between the middle and the end: what a worker stages and frees fills the holes of its heap for some
hundred rounds, and then no more.
"""

import os
import statistics

import pytest

from harness.conformance.engine.load import Load
from harness.conformance.engine.scenarios import SINGLE, EngineScenario
from harness.conformance.engine.stage import PROMPTS
from harness.conformance.engine.test_versions import (
    GROWTH_BYTES,
    alternate,
    require_answered,
    require_whole,
    resident,
)
from harness.conformance.sync.scenarios import SyncScenario

ROUNDS = int(os.environ.get("HARNESS_ENGINE_ROUNDS", "0"))

pytestmark = [
    pytest.mark.engine,
    pytest.mark.nightly,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(ROUNDS == 0, reason="takes minutes: set HARNESS_ENGINE_ROUNDS=200"),
]


def test_endurance_no_round_fails_no_answer_is_a_mixture_and_memory_is_flat(on_stage, capsys):
    cell = on_stage(EngineScenario(SyncScenario("llama", "lora", "zero3", 2, "bf16"), SINGLE))
    cell.trainer.call("keep", "a")
    for _ in range(3):
        cell.trainer.call("step")
    cell.trainer.call("keep", "b")
    alternate(cell, 1)  # what is served from here on is A or B
    server, ranks = sorted(cell.server.family()), cell.trainer.pids()
    begun = resident(server)
    with Load(cell.server.client, [list(prompt) for prompt in PROMPTS[:2]]) as load:
        load.wait_until_running()
        seconds = alternate(cell, ROUNDS // 2)
        before = resident(server), resident(ranks)
        seconds += alternate(cell, ROUNDS - ROUNDS // 2)
    after = resident(server), resident(ranks)
    require_answered(cell, load)
    require_whole(cell, load.asked)
    figures = {
        "requests": len(load.asked),
        "median_s": statistics.median(seconds),
        "worst_s": max(seconds),
        "server_growth_in_the_first_half_mib": (before[0] - begun) / 2**20,
        "server_growth_mib": (after[0] - before[0]) / 2**20,
        "trainer_growth_mib": (after[1] - before[1]) / 2**20,
        "worst_gap": cell.evidence["worst_gap"],
        "load_average": os.getloadavg()[0],
    }
    with capsys.disabled():
        print(f"\n{ROUNDS} rounds under load: {figures}")
    assert sorted(cell.server.family()) == server
    assert after[0] - before[0] <= GROWTH_BYTES
    assert after[1] - before[1] <= GROWTH_BYTES
