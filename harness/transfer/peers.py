"""The trainer's ranks among themselves: did any of us fail? Asked before and after the weights move."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import torch.distributed as dist

from harness.transfer.blocks import as_block, empty_blocks, first_line, first_text

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


class Peers(Protocol):
    """The ranks of one trainer. Rank 0 speaks with the engine."""

    rank: int

    def agree(self, failure: str | None) -> str | None:
        """Say whether this rank has failed; hear the first failure there is. Collective, within a limit."""
        ...


class Alone:
    """A trainer of one rank."""

    rank = 0

    def agree(self, failure: str | None) -> str | None:
        return failure


class GroupPeers:
    """The ranks of a gloo process group.

    Args:
        seconds: how long a rank waits for the others.
        group: the default process group when None.
    """

    def __init__(self, seconds: float, group: ProcessGroup | None = None) -> None:
        self._group, self._seconds = group, seconds
        self.rank = dist.get_rank(group)
        self._size = dist.get_world_size(group)

    def agree(self, failure: str | None) -> str | None:
        """As in ``Peers``. A rank that does not come is a failure, and no exception.

        The wait is twice the limit: a peer may itself be waiting for the engine.
        """
        blocks = empty_blocks(self._size)
        try:
            work = dist.all_gather(blocks, as_block(failure), group=self._group, async_op=True)
            work.wait(timedelta(seconds=2 * self._seconds))
        except RuntimeError as error:
            return failure or f"trainer rank {self.rank} lost another rank: {first_line(error)}"
        return first_text(blocks)
