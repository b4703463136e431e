"""The default process group of a rank, over the store that the parent owns."""

import datetime
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.ranks.rank import Rank
from harness.ranks.settings import RankSettings

if TYPE_CHECKING:
    import torch

_FOR_EVER = datetime.timedelta(days=7)
"""Limit of one collective: none. The parent's deadline ends a stuck rank and shows where; this one would only raise."""


def open_group(rank: int, settings: RankSettings) -> Rank:
    """Join the default process group and say where this rank's tensors belong. Collective over the pool.

    Returns:
        What the ``rank`` fixture gives to tests.
    """
    import torch
    import torch.distributed as dist

    spec = settings.spec
    store = connect(settings)
    device, local_rank = _device(torch, rank, spec.device)
    if spec.backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=spec.world_size)
    else:
        group_store = dist.PrefixStore("group", store)
        dist.init_process_group(
            spec.backend, store=group_store, rank=rank, world_size=spec.world_size, timeout=_FOR_EVER
        )
    return Rank(rank, spec.world_size, local_rank, device, spec.backend, dist.PrefixStore("tests", store))


def close_group() -> None:
    """Leave the default process group, if the tests left one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def connect(settings: RankSettings) -> "torch.distributed.Store":
    """A connection of its own to the pool's part of the parent's store."""
    import torch.distributed as dist

    store = dist.TCPStore(settings.store_host, settings.store_port, is_master=False, timeout=_FOR_EVER)
    return dist.PrefixStore(settings.prefix, store)


def _device(torch: "torch", rank: int, wanted: str) -> "tuple[torch.device, int]":  # type: ignore[valid-type]
    cuda = torch.cuda.is_available()
    if wanted == "cuda" and not cuda:
        raise HarnessError(f"rank {rank} was asked to use CUDA, and torch.cuda.is_available() says no")
    if wanted == "cpu" or not cuda:
        return torch.device("cpu"), rank
    index = rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index), index
