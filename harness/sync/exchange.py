"""How runs travel between ranks: every collective of this package is issued here, in one order on every rank.

A flat buffer is the concatenation of one region per rank, all of one size, and each rank has filled its own.
Sharing completes it in place. Over gloo every region goes straight from its owner's memory to its place on
each peer: an all-gather takes twice the time and stages a second copy, and a broadcast is held by a thread of
gloo's for a while after it is complete. Elsewhere it is one all-gather, whatever the number of ranks. Gloo
sends no tensor of another device, so what goes to one rank is staged through the host there.
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

    def __init__(
        self,
        works: Sequence[Any] = (),
        held: Sequence[Tensor] = (),
        landings: Sequence[tuple[Tensor, Tensor]] = (),
    ) -> None:
        self._works, self._held = list(works), list(held)
        self._landings = list(landings)  # where staged bytes belong, and where they arrive

    def __add__(self, other: "Transfer") -> "Transfer":
        """Both."""
        return Transfer(
            [*self._works, *other._works],
            [*self._held, *other._held],
            [*self._landings, *other._landings],
        )

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
        for place, staged in self._landings:
            place.copy_(staged)
        self._held, self._landings = [], []


def room(run: Run) -> Tensor:
    """A flat buffer for a whole parameter; longer than that where the exchange wants equal regions."""
    size = run.numel
    if run.group is not None and not _is_direct(run.device, run.group):
        size = run.each * (len(run.bounds) - 1)
    return torch.empty(size, dtype=run.mine.dtype, device=run.device)


def share(buffer: Tensor, run: Run, each: int) -> Transfer:
    """Complete a flat buffer of which each rank has filled its own region, on every rank.

    Args:
        buffer: flat, as ``room`` makes it.
        run: of a parameter that is cut over the ranks that share.
        each: elements of a region; that of rank ``r`` begins at ``r * each`` and may be cut short by the end.
    """
    if run.group is None:
        return Transfer()
    if not _is_direct(buffer.device, run.group):
        mine = buffer[run.rank * each : (run.rank + 1) * each]
        return Transfer([_all_gather(buffer, mine, group=run.group, async_op=True)], [buffer])
    ranks = len(run.bounds) - 1
    regions = [buffer[owner * each : (owner + 1) * each] for owner in range(ranks)]
    transfer = Transfer()
    for step in range(1, ranks):
        to, source = (run.rank + step) % ranks, (run.rank - step) % ranks
        transfer += send([regions[run.rank]], to, run.group) + receive([regions[source]], source, run.group)
    return transfer


_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
"""Under its name of torch 2.13, or the one it had before."""


def _is_direct(device: torch.device, group: ProcessGroup) -> bool:
    """Whether a region can go from memory to memory: gloo takes host tensors only for that."""
    return device.type == "cpu" and _is_gloo(group)


def _is_staged(device: torch.device, group: ProcessGroup) -> bool:
    """Whether what goes to one rank must go through host memory."""
    return device.type != "cpu" and _is_gloo(group)


def _is_gloo(group: ProcessGroup) -> bool:
    return "gloo" in dist.get_backend(group)


def send(pieces: Sequence[Tensor], receiver: int, group: ProcessGroup) -> Transfer:
    """Send flat pieces to one rank of the group, straight from where they lie."""
    leaving = [
        piece.to("cpu", copy=True) if _is_staged(piece.device, group) else piece
        for piece in pieces
        if piece.numel()
    ]
    works = [dist.isend(piece, group=group, group_dst=receiver) for piece in leaving]
    return Transfer(works, leaving)


def receive(pieces: Sequence[Tensor], owner: int, group: ProcessGroup) -> Transfer:
    """Receive what ``send`` sends, straight into where it belongs."""
    arriving = [piece for piece in pieces if piece.numel()]
    staged = [
        torch.empty_like(piece, device="cpu") if _is_staged(piece.device, group) else piece
        for piece in arriving
    ]
    works = [dist.irecv(piece, group=group, group_src=owner) for piece in staged]
    landings = [pair for pair in zip(arriving, staged, strict=True) if pair[0] is not pair[1]]
    return Transfer(works, staged, landings)


def gather_whole(run: Run) -> Tensor:
    """The whole parameter, flat, in bytes of its own; collective over the run's group, and blocking."""
    whole = room(run)
    run.copy_into(whole)
    share(whole, run, run.each).wait()
    return whole[: run.numel]
