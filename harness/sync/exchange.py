"""How runs travel between ranks: every collective of this package is issued here, in one order on every rank.

A flat buffer is the concatenation of one region per rank, and each rank has filled its own. Sharing completes
it in place. Over gloo every region goes straight from its owner's memory to its place on each peer: an
all-gather takes twice the time and stages a second copy, and a broadcast is held by a thread of gloo's for a
while after it is complete. Elsewhere there is one broadcast per region.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from harness.sync.sharding.run import Run


class Transfer:
    """Collectives in flight, and the tensors that they read or write."""

    def __init__(self, works: Sequence[Any] = (), held: Sequence[Tensor] = ()) -> None:
        self._works = list(works)
        self._held = list(held)

    def __add__(self, other: "Transfer") -> "Transfer":
        """Both."""
        return Transfer([*self._works, *other._works], [*self._held, *other._held])

    def wait(self, seconds: float | None = None) -> None:
        """Return when every collective is complete.

        Args:
            seconds: limit for each; None leaves it to the process group.

        Raises:
            RuntimeError: from torch, when a peer is gone or the limit has passed.
        """
        works, self._works = self._works, []
        for work in works:
            if seconds is None:
                work.wait()
            else:
                work.wait(timedelta(seconds=seconds))
        self._held = []


def share(buffer: Tensor, run: Run, bounds: Sequence[int]) -> Transfer:
    """Complete a flat buffer of which each rank has filled its own region, on every rank.

    Args:
        buffer: flat; at least ``bounds[-1]`` elements.
        run: of a parameter that is cut over the ranks that share.
        bounds: region of rank ``r`` is ``buffer[bounds[r]:bounds[r + 1]]``.
    """
    if run.group is None:
        return Transfer()
    ranks = len(bounds) - 1
    regions = [buffer[bounds[owner] : bounds[owner + 1]] for owner in range(ranks)]
    if _is_direct(buffer, run.group):
        transfer = Transfer()
        for step in range(1, ranks):
            to, source = (run.rank + step) % ranks, (run.rank - step) % ranks
            transfer += send([regions[run.rank]], to, run.group) + receive(
                [regions[source]], source, run.group
            )
        return transfer
    works = [
        dist.broadcast(region, group=run.group, group_src=owner, async_op=True)
        for owner, region in enumerate(regions)
        if region.numel()
    ]
    return Transfer(works, [buffer])


def _is_direct(buffer: Tensor, group: ProcessGroup) -> bool:
    """Whether a region can go from memory to memory: gloo takes host tensors only for that."""
    return buffer.device.type == "cpu" and "gloo" in dist.get_backend(group)


def send(pieces: Sequence[Tensor], receiver: int, group: ProcessGroup) -> Transfer:
    """Send flat pieces to one rank of the group, straight from where they lie."""
    works = [dist.isend(piece, group=group, group_dst=receiver) for piece in pieces if piece.numel()]
    return Transfer(works, list(pieces))


def receive(pieces: Sequence[Tensor], owner: int, group: ProcessGroup) -> Transfer:
    """Receive what ``send`` sends, straight into where it belongs."""
    works = [dist.irecv(piece, group=group, group_src=owner) for piece in pieces if piece.numel()]
    return Transfer(works, list(pieces))


def gather_whole(run: Run) -> Tensor:
    """The whole parameter, flat, in bytes of its own; collective over the run's group, and blocking."""
    whole = torch.empty(run.numel, dtype=run.mine.dtype, device=run.device)
    run.copy_into(whole)
    share(whole, run, run.bounds).wait()
    return whole
