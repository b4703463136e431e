"""The default process group of a rank, over the store that the parent owns."""

import datetime as dt
import socket
from typing import TYPE_CHECKING

from harness.errors import HarnessError
from harness.ranks.rank import Rank
from harness.ranks.settings import RankSettings

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

_FOR_EVER = dt.timedelta(days=7)
"""Of one collective: none. The parent's deadline ends a stuck rank and shows where it was."""


def open_group(rank: int, settings: RankSettings) -> Rank:
    """Join the default process group and say where this rank's tensors belong. Collective over the pool.

    Returns:
        What the ``rank`` fixture gives to tests.
    """
    import torch.distributed as dist

    spec = settings.spec
    store = connect(settings)
    device, local_rank = _device(rank, spec.device)
    if spec.backend == "fake":
        from torch.testing._internal.distributed.fake_pg import FakeStore

        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=spec.world_size)
    else:
        group_store = part_of(store, "group")
        dist.init_process_group(
            spec.backend, store=group_store, rank=rank, world_size=spec.world_size, timeout=_FOR_EVER
        )
    return Rank(rank, spec.world_size, local_rank, device, spec.backend, part_of(store, "tests"))


def close_group() -> None:
    """Leave the default process group, if the tests left one."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def connect(settings: RankSettings) -> "Store":
    """A connection of its own to the pool's part of the parent's store."""
    return part_of(connect_to(settings.store_host, settings.store_port), settings.prefix)


def connect_to(host: str, port: int, timeout: dt.timedelta = _FOR_EVER) -> "Store":
    """A connection of its own to a store that another process serves."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    store: Store = TCPStore(host, port, is_master=False, timeout=timeout)
    return store


def serve(host: str) -> "Store":
    """The store itself, in the parent, on a free port. It ends when the last reference goes.

    Args:
        host: The only address at which it listens; left to itself, ``TCPStore`` listens at all of them.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    with socket.create_server((host, 0)) as listening:
        port = listening.getsockname()[1]
        store: Store = TCPStore(
            host, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
    return store


def port_of(store: "Store") -> int:
    """The port that the system chose for ``serve``."""
    port: int = store.port  # type: ignore[attr-defined]
    return port


def part_of(store: "Store", prefix: str) -> "Store":
    """The keys of a store that begin with a prefix."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    part: Store = PrefixStore(prefix, store)
    return part


def _device(rank: int, wanted: str) -> "tuple[torch.device, int]":
    import torch

    cuda = torch.cuda.is_available()
    if wanted == "cuda" and not cuda:
        raise HarnessError(f"rank {rank} was asked to use CUDA, and torch.cuda.is_available() says no")
    if wanted == "cpu" or not cuda:
        return torch.device("cpu"), rank
    index = rank % torch.cuda.device_count()
    torch.cuda.set_device(index)
    return torch.device("cuda", index), index
