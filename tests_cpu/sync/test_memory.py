"""What a pass holds above the shard follows from the largest tensor, and not from the depth."""

import pytest
from peft import LoraConfig
from sync_models import adapted, llama
from torch.distributed.fsdp import fully_shard

from harness.memory import measure
from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource

pytestmark = pytest.mark.ranks(2)
OWN = 160 << 10  # bytes of Python objects: plan, names, handles; they do not grow with a tensor


@pytest.fixture(scope="module")
def models():
    built = {}
    for layers in (2, 4):
        base = llama(layers=layers, hidden=256, vocabulary=16384)
        model = adapted(base, LoraConfig(r=8, target_modules="all-linear"))
        built[layers] = fully_shard(model)
    return built


def consume(source):
    for _ in source:  # the loop holds each tensor until the next has arrived
        pass


def peak(source):
    consume(source)  # warm: first exchanges, first products
    with measure() as memory:
        consume(source)
    return memory.peak_bytes, memory.retained_bytes


def largest(source):
    return max(meta.nbytes for meta in source.metadata())


def test_every_rank_receives_within_a_quarter_above_the_largest_tensor(rank, models):
    peaks = {}
    for layers, model in models.items():
        source = ModuleGatherSource(model)
        peaks[layers], retained = peak(source)
        assert peaks[layers] <= 1.25 * largest(source) + OWN
        assert retained <= OWN
    assert peaks[4] <= peaks[2] + 0.05 * largest(source)


def test_a_rank_that_only_sends_holds_a_quarter_of_the_largest_tensor(rank, models):
    source = SenderGatherSource(models[4])
    held, _ = peak(source)
    assert held <= (1.25 if rank.rank == 0 else 0.25) * largest(source) + OWN


def test_the_full_gather_holds_the_model(rank, models):
    source = FullGatherSource(models[2])
    held, _ = peak(source)
    assert held >= sum(meta.nbytes for meta in source.metadata())
