"""The law at world sizes that no laptop has: one process stands for rank 0 of 2, 8, 64 or 256.

The process group is torch's ``fake`` one, so values mean nothing; ZeRO-3's shards, the gathers' buffers and the merges
are real, and so is their memory.
"""

import pytest

from harness.conformance.sync.family import DEEP, SHALLOW, Member
from harness.conformance.sync.scenarios import SyncScenario
from harness.memory.law import fit
from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource

SHAPES = ((SHALLOW, 256), (DEEP, 256), (SHALLOW, 384))  # depth, width
pytestmark = pytest.mark.ranks(2, 8, 64, 256, backend="fake")


@pytest.fixture(scope="module")
def models(rank):
    scenario = SyncScenario("llama", "lora", "zero3", rank.world_size, "bf16")
    members = [Member(depth, width, scenario) for depth, width in SHAPES]
    return [(member, member.build()) for member in members]


def law(models, source):
    return fit([member.measured(model, source) for member, model in models])


def test_the_module_wise_peak_follows_the_largest_tensor(rank, models):
    found = law(models, ModuleGatherSource)
    assert not found.grows(), found
    assert found.tensors < 1.5, found


def test_a_rank_that_only_sends_holds_less_than_a_tensor(rank, models):
    found = law(models, lambda model: SenderGatherSource(model, sender=1))
    assert not found.grows(), found
    assert found.tensors < 0.5, found


def test_the_full_gather_rises_by_a_layer_for_each_layer(rank, models):
    found = law(models, FullGatherSource)
    assert found.layers == pytest.approx(1, abs=0.15), found
