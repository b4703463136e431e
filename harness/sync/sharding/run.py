"""The one shape that every layout here has: a flattened parameter cut into one contiguous run per rank."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class Run:
    """What this rank holds of a parameter, and who holds the rest."""

    mine: Tensor
    """This rank's elements, flat. It is the live storage: only ever read."""
    bounds: tuple[int, ...]
    """Rank ``r`` of the group holds flat elements ``bounds[r]`` to ``bounds[r + 1]``; runs may be empty."""
    rank: int
    """This rank's place in the group."""
    group: ProcessGroup | None
    """The group that the parameter is cut over; None when this rank holds all of it."""
    device: torch.device
    """Where the parameter is wanted whole: the model's device, also when shards are offloaded."""

    @property
    def numel(self) -> int:
        """Elements of the whole parameter."""
        return self.bounds[-1]

    @property
    def each(self) -> int:
        """Elements of a run, except of those that the end of the parameter cuts short."""
        return self.bounds[1]

    @property
    def nbytes(self) -> int:
        """Bytes of the whole parameter."""
        return self.numel * self.mine.dtype.itemsize

    @property
    def start(self) -> int:
        """First flat element that this rank holds."""
        return self.bounds[self.rank]

    @property
    def stop(self) -> int:
        """First flat element after this rank's run."""
        return self.bounds[self.rank + 1]

    @property
    def alone(self) -> bool:
        """Whether this rank holds the whole parameter."""
        return self.group is None or len(self.bounds) == 2

    def copy_into(self, whole: Tensor) -> None:
        """Write this rank's run at its place in a flat buffer for the whole parameter."""
        if self.stop > self.start:
            whole[self.start : self.stop].copy_(self.mine)


def whole_run(tensor: Tensor) -> Run:
    """The run of a parameter that this rank holds whole."""
    flat = tensor.detach().reshape(-1)
    return Run(flat, (0, flat.numel()), 0, None, tensor.device)


@lru_cache(maxsize=256)  # a model has few shapes, and at 256 ranks the bounds of one are 10 KB
def even_bounds(numel: int, ranks: int, each: int) -> tuple[int, ...]:
    """Bounds of runs of ``each`` elements, the last ones cut short where the parameter ends."""
    return tuple(min(rank * each, numel) for rank in range(ranks + 1))
