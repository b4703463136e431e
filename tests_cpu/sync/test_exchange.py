"""The ways of an exchange that only accelerators take, with the same tensors on CPU: values are the same."""

import pytest
import torch
from peft import LoraConfig
from sync_models import adapted, assert_yields, llama, merged
from torch.distributed.fsdp import fully_shard

from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource, exchange

pytestmark = pytest.mark.ranks(2, 3)


def build():
    return adapted(llama(vocabulary=99), LoraConfig(r=3, target_modules="all-linear"))


@pytest.fixture
def sharded():
    return fully_shard(build()), merged(build())


@pytest.mark.parametrize("source", [ModuleGatherSource, FullGatherSource])
def test_one_all_gather_of_equal_regions(rank, sharded, source, monkeypatch):
    monkeypatch.setattr(exchange, "_is_direct", lambda device, group: False)
    model, expected = sharded
    assert_yields(source(model), expected)


def test_what_goes_to_one_rank_is_staged_through_the_host(rank, sharded, monkeypatch):
    monkeypatch.setattr(exchange, "_is_direct", lambda device, group: False)
    monkeypatch.setattr(exchange, "_is_staged", lambda device, group: True)
    copied = []
    monkeypatch.setattr(
        exchange.torch,
        "empty_like",
        lambda piece, device: copied.append(device) or torch.empty(piece.shape, dtype=piece.dtype),
    )
    model, expected = sharded
    if rank.rank == 0:
        assert_yields(SenderGatherSource(model), expected)
        assert set(copied) == {"cpu"}
    else:
        assert list(SenderGatherSource(model)) == []
