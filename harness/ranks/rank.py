"""What a test sees of its rank: the ``rank`` fixture's value."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Rank:
    """One process of a distributed test. The default process group is initialised before the test begins."""

    rank: int
    """This process's number, from 0."""
    world_size: int
    """How many ranks run the test."""
    local_rank: int
    """Index of this rank's device on its machine."""
    device: "torch.device"
    """Where this rank's tensors belong."""
    backend: str
    """Backend of the default process group."""
    store: "Store" = field(repr=False)
    """A key-value store that all ranks of the pool share; prefix your keys with something of the test's
    own."""

    def barrier(self) -> None:
        """Wait for every rank, on the default process group."""
        import torch.distributed as dist

        dist.barrier()
