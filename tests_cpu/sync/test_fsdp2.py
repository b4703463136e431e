"""FSDP2 and DDP: the same values from other layouts; FSDP1 is refused by name."""

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig
from sync_models import adapted, assert_yields, llama, merged
from torch.distributed.fsdp import fully_shard

from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource, SyncRefused

SOURCES = pytest.mark.parametrize("source", [ModuleGatherSource, FullGatherSource])


def model_of(kind):
    dtype = torch.bfloat16 if "bf16" in kind else torch.float32
    base = llama(dtype=dtype, tied="tied" in kind)
    if "plain" in kind:
        return base
    return adapted(base, LoraConfig(r=3, target_modules="all-linear", use_dora="dora" in kind))


def shard(model, **options):
    """One group for each decoder layer and one for the rest; r=3 does not divide over ranks."""
    for layer in next(module for name, module in model.named_modules() if name.endswith("layers")):
        fully_shard(layer, **options)
    return fully_shard(model, **options)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", ["lora-bf16", "dora-fp32", "plain-tied-bf16"])
@SOURCES
def test_fully_sharded(rank, kind, source):
    model = model_of(kind)
    expected = merged(model)
    model = shard(model)
    local = [live.to_local().clone() for live in model.parameters()]
    for _ in range(2):
        assert_yields(source(model), expected)
    assert all(torch.equal(live.to_local(), old) for live, old in zip(model.parameters(), local, strict=True))


@pytest.mark.ranks(2)
def test_only_the_sender_is_given_tensors(rank):
    model = model_of("lora-bf16")
    expected = merged(model)
    source = SenderGatherSource(shard(model), 1)
    if rank.rank == 1:
        assert_yields(source, expected)
    else:
        assert list(source) == []


@pytest.mark.ranks(2)
def test_after_a_forward_that_left_parameters_gathered(rank):
    model = model_of("lora-fp32")
    expected = merged(model)
    model = shard(model, reshard_after_forward=False)
    model(input_ids=torch.arange(6)[None])
    assert_yields(ModuleGatherSource(model), expected)


@pytest.mark.ranks(2)
def test_replicas_of_shards(rank):
    from torch.distributed.device_mesh import init_device_mesh

    model = model_of("lora-fp32")
    expected = merged(model)
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("replica", "shard"))
    assert_yields(ModuleGatherSource(shard(model, mesh=mesh)), expected)


@pytest.mark.ranks(2)
def test_a_cut_of_another_dimension_is_refused(rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    model = torch.nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (2,))
    model.weight = torch.nn.Parameter(distribute_tensor(model.weight.data, mesh, [Shard(1)]))
    with pytest.raises(SyncRefused, match="weight is laid out as"):
        ModuleGatherSource(model)


@pytest.mark.ranks(2)
@SOURCES
def test_data_parallel(rank, source):
    model = model_of("lora-bf16")
    expected = merged(model)
    assert_yields(source(torch.nn.parallel.DistributedDataParallel(model)), expected)


@pytest.mark.ranks(2)
def test_data_parallel_to_the_sender_only(rank):
    source = SenderGatherSource(torch.nn.parallel.DistributedDataParallel(model_of("plain")), 1)
    assert len(list(source)) == (len(source.metadata()) if rank.rank == 1 else 0)
    dist.barrier()


class FullyShardedDataParallel(torch.nn.Module):
    """Stands for FSDP1's wrapper, which needs an accelerator to be made."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def test_the_first_fsdp_is_refused_by_name():
    with pytest.raises(SyncRefused, match=r"FSDP1 .*fully_shard"):
        ModuleGatherSource(FullyShardedDataParallel(torch.nn.Linear(2, 2)))
