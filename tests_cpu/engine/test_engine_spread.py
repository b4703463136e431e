"""An engine of two workers: that share one model (tensor parallel 2), or have a replica each (data parallel 2)."""

import json

import pytest

from harness.conformance.engine.incident import provoke
from harness.conformance.engine.scenarios import DATA, TENSOR, EngineScenario
from harness.conformance.engine.scoring import BOUND, Mismatch
from harness.conformance.sync.scenarios import SyncScenario

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


@pytest.mark.parametrize("layout", [TENSOR, DATA], ids=str, scope="class")
class TestTwoWorkers:
    @pytest.fixture
    def cell(self, on_stage, layout):
        return on_stage(EngineScenario(SyncScenario("llama", "lora", "zero3", 2, "bf16"), layout))

    def versions(self, cell):
        """Of the workers that answer a collective call: those of the first replica."""
        workers = cell.server.client.collective("probe_identity").body["results"]
        return [worker["version"] for worker in sorted(workers, key=lambda worker: worker["index"])]

    def test_every_worker_has_the_weights_that_were_sent_and_the_answers_are_merge_and_unloads(self, cell):
        for _ in range(2):
            cell.trainer.call("step")
            version = cell.sync()
            assert self.versions(cell) == [version] * cell.scenario.layout.tensor_parallel
            assert cell.mismatch().max <= BOUND["bf16"]

    @pytest.mark.parametrize("worker", [0, 1])
    def test_a_worker_that_fails_at_a_chunk_leaves_both_with_the_old_weights(self, cell, worker):
        version = cell.sync()
        old = cell.scores()
        cell.trainer.call("step")
        fault = {"worker": worker, "phase": "chunk", "action": "raise"}
        cell.server.client.collective("probe_arm", json.dumps(fault))
        incident = provoke(cell)
        assert incident.messages() == {f"engine worker {worker}: RuntimeError: a fault on purpose"}
        assert set(incident.failures) == {0, 1}
        assert self.versions(cell) == [version] * cell.scenario.layout.tensor_parallel
        assert Mismatch.between(old, cell.scores()).max <= BOUND["bf16"]
        cell.sync()
        assert cell.mismatch().max <= BOUND["bf16"]
