"""How ranks agree that a pass has failed, at one place in its order of collectives.

A rank on which something fails cannot just leave: its peers are waiting for its runs. It goes on taking part,
and its next status byte, which travels in every pack, tells them. All ranks read the same bytes at the same
place.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from harness.sync.errors import SyncFailed
from harness.sync.sharding.run import Run


class Verdict:
    """What this rank knows of the failure of a pass.

    Args:
        member: run of any parameter that is cut over ranks; None when nothing is, and failures stay local.
    """

    def __init__(self, member: Run | None) -> None:
        self._member = member
        self._error: BaseException | None = None
        self._place = ""

    @property
    def has_peers(self) -> bool:
        """Whether there is a rank to tell."""
        return self._member is not None

    @property
    def failed(self) -> bool:
        """Whether something failed on this rank."""
        return self._error is not None

    def fail(self, error: BaseException, place: str) -> None:
        """Remember the first failure on this rank; ``place`` says what it was doing."""
        if self._error is None:
            self._error, self._place = error, place

    def run(self) -> Run | None:
        """The status bytes as a parameter to pack: one per rank, 1 for failed."""
        if self._member is None:
            return None
        ranks = len(self._member.bounds) - 1
        mine = torch.tensor([int(self.failed)], dtype=torch.uint8, device=self._member.device)
        bounds = tuple(range(ranks + 1))
        return Run(mine, bounds, self._member.rank, self._member.group, self._member.device)

    def judge(self, flags: Tensor | None) -> None:
        """Go on, or end the pass on every rank.

        Args:
            flags: status byte of every rank, or None where there are no peers.

        Raises:
            SyncFailed: some rank had failed; names each and what happened there.
        """
        if flags is None:
            if self._error is not None:
                raise SyncFailed(
                    self._account(dist.get_rank() if dist.is_initialized() else 0)
                ) from self._error
            return
        if not flags.any():
            return
        assert self._member is not None
        mine = self._account(self._member.rank) if self._error is not None else None
        accounts: list[str | None] = [None] * flags.numel()
        dist.all_gather_object(accounts, mine, group=self._member.group)
        raise SyncFailed("; ".join(account for account in accounts if account)) from self._error

    def _account(self, rank: int) -> str:
        return f"rank {rank} failed {self._place}: {type(self._error).__name__}: {self._error}"
