"""The memory law on the device: over depths and widths, by the allocator's count of requested bytes."""

import pytest
from place import DEVICE

from harness.conformance.sync.family import Member
from harness.conformance.sync.scenarios import SyncScenario
from harness.memory.law import fit
from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource

SHAPES = [(depth, width) for width in (256, 384) for depth in (2, 8, 16)]
pytestmark = [pytest.mark.ranks(2, device=DEVICE), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def models(rank):
    scenario = SyncScenario("llama", "lora", "zero3", 2, "bf16", DEVICE)
    members = [Member(depth, width, scenario) for depth, width in SHAPES]
    return [(member, member.build()) for member in members]


def law(models, source):
    return fit([member.measured(model, source) for member, model in models])


def test_the_module_wise_peak_follows_the_largest_tensor(rank, models):
    found = law(models, ModuleGatherSource)
    assert not found.grows(), found
    assert found.tensors < 1.5, found


def test_a_rank_that_only_sends_holds_less_than_a_tensor(rank, models):
    found = law(models, SenderGatherSource)
    assert not found.grows(), found
    assert found.tensors < (1.5 if rank.rank == 0 else 0.5), found


def test_the_full_gather_rises_by_a_layer_for_each_layer(rank, models):
    found = law(models, FullGatherSource)
    assert found.layers == pytest.approx(1, abs=0.15), found
