"""Who receives the large tensors of a pass: every rank, or only the one that feeds the engine."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from harness.sync.exchange import Transfer, receive, room, send, share
from harness.sync.sharding.run import Run

Merge = Callable[[Tensor, int, int], None]
"""Merges a copy of flat base elements in place: the copy, its first element, the one after its last."""


class Delivery(Protocol):
    """Starts the exchange of one parameter, after this rank has merged its own run of it."""

    def receives(self, run: Run) -> bool:
        """Whether this rank, of which a run is given, is handed tensors."""
        ...

    def start(self, run: Run, merge: Merge | None, cuts: Sequence[int]) -> tuple[Tensor | None, Transfer]:
        """Begin.

        Args:
            run: what this rank holds of the parameter.
            merge: merges a piece of it; None when the base value is wanted.
            cuts: flat elements where the parameter may be cut into pieces; the same on every rank.

        Returns:
            The flat tensor, whole once the transfer is complete, or None on a rank that is not given it.
        """
        ...


class ToEveryRank:
    """Each rank merges its run at its place in the whole, and the places are shared."""

    def receives(self, run: Run) -> bool:
        """Every rank."""
        del run
        return True

    def start(self, run: Run, merge: Merge | None, cuts: Sequence[int]) -> tuple[Tensor | None, Transfer]:
        """Begin; every rank is given the tensor."""
        del cuts
        whole = room(run)
        run.copy_into(whole)
        if merge is not None:
            merge(whole[run.start : run.stop], run.start, run.stop)
        return whole[: run.numel], share(whole, run, run.each)


class ToOneRank:
    """Runs go to one rank; the others hold at most a piece of their own run beside the model.

    Args:
        receiver: rank that is given the tensors, in the group that parameters are cut over.
    """

    def __init__(self, receiver: int) -> None:
        self.receiver = receiver

    def receives(self, run: Run) -> bool:
        """The receiver; where nothing is sharded, by its rank in the default group."""
        if run.group is None:
            return not dist.is_initialized() or dist.get_rank() == self.receiver
        return run.rank == self.receiver

    def start(self, run: Run, merge: Merge | None, cuts: Sequence[int]) -> tuple[Tensor | None, Transfer]:
        """Begin; on ranks that only send, all but the last piece is on its way already."""
        if run.group is None:
            return ToEveryRank().start(run, merge, cuts) if self.receives(run) else (None, Transfer())
        if not self.receives(run):
            return None, self._send(run, merge, cuts)
        whole = torch.empty(run.numel, dtype=run.mine.dtype, device=run.device)
        arriving = Transfer()
        for owner in range(len(run.bounds) - 1):
            if owner != run.rank:
                pieces = _pieces(run.bounds[owner], run.bounds[owner + 1], cuts)
                arriving += receive([whole[low:high] for low, high in pieces], owner, run.group)
        run.copy_into(whole)
        if merge is not None:
            merge(whole[run.start : run.stop], run.start, run.stop)
        return whole, arriving

    def _send(self, run: Run, merge: Merge | None, cuts: Sequence[int]) -> Transfer:
        assert run.group is not None
        last = Transfer()
        for low, high in _pieces(run.start, run.stop, cuts):
            piece = run.mine[low - run.start : high - run.start]
            if merge is not None:
                piece = piece.clone()
                merge(piece, low, high)
            last.wait()
            last = send([piece], self.receiver, run.group)
        return last


def _pieces(start: int, stop: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
    """Cut flat elements ``start`` to ``stop`` at those of the cuts that lie inside."""
    edges = [start, *(cut for cut in cuts if start < cut < stop), stop]
    return [(low, high) for low, high in pairwise(edges) if low < high]
