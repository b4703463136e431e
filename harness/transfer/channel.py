"""The wire between trainer rank 0 and every engine worker: a gloo group of their own, with a limit on every wait.

::

    trainer rank 0 ── TCPStore, hosted here on one address, on a port the system chose
       │  rank 0 of the group
       ├── broadcast ─► worker 0   rank 1
       ├── broadcast ─► worker 1   rank 2          agree(): everybody hears the first failure, in the same words
       └── …

A gloo group is useless once an operation on it has failed, so a channel lives until its first failure, and the next
transfer opens a new one. Nothing of torch's default process group is used or touched.
"""

from __future__ import annotations

import socket
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from harness.transfer.blocks import as_block, empty_blocks, first_line, first_text
from harness.transfer.errors import TransferFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

_SLICE = 0.1  # seconds between two looks at the alarm; a completed operation is seen at once


def host_store(address: str, seconds: float) -> Any:
    """Host a TCPStore that listens on ``address`` only, on a port that the system chooses (``.port``)."""
    listener = socket.create_server((address, 0), backlog=64)
    port = listener.getsockname()[1]
    return dist.TCPStore(  # type: ignore[attr-defined]
        address,
        port,
        None,
        is_master=True,
        timeout=timedelta(seconds=seconds),
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )


def reach_store(address: str, port: int, seconds: float) -> Any:
    """Connect to the store that a trainer hosts.

    Raises:
        TransferFailed: nobody listens there.
    """
    try:
        return dist.TCPStore(  # type: ignore[attr-defined]
            address, port, None, is_master=False, timeout=timedelta(seconds=seconds)
        )
    except dist.DistError as error:
        raise TransferFailed(
            f"no trainer answers at {address}:{port} within {seconds:g} s: {first_line(error)}"
        ) from error


class Channel:
    """A group of one trainer (rank 0) and its engine's workers.

    Args:
        store: where the members meet.
        session: a name that no earlier channel on this store had.
        rank: 0 for the trainer.
        size: members.
        address: of the network interface to use.
        seconds: limit of every wait.
        alarm: called several times a second during a wait; what it raises ends the wait.

    Raises:
        TransferFailed: the others did not come in time.
    """

    def __init__(
        self,
        store: Any,
        session: str,
        rank: int,
        size: int,
        *,
        address: str,
        seconds: float,
        alarm: Callable[[], None] = lambda: None,
    ) -> None:
        self.rank, self.size, self.seconds, self.alarm = rank, size, seconds, alarm
        self._store = dist.PrefixStore(f"channel/{session}", store)  # type: ignore[attr-defined]
        self._works: list[Any] = []
        options: Any = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001 - names the interface
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]  # noqa: SLF001
        options._timeout = timedelta(seconds=seconds)  # noqa: SLF001
        try:
            self._group: Any = dist.ProcessGroupGloo(self._store, rank, size, options)
        except (RuntimeError, ValueError) as error:
            raise TransferFailed(
                f"the {size} members of a transfer did not all connect within {seconds:g} s: {first_line(error)}"
            ) from error
        self._store.set_timeout(timedelta(seconds=min(2.0, seconds)))

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Rank 0's bytes to everybody, in place.

        Raises:
            TransferFailed: a member is gone or silent; the same sentence everywhere, if the store can be reached.
        """
        self._wait(lambda: self._group.broadcast([tensor], dist.BroadcastOptions()))

    def agree(self, failure: str | None) -> str | None:
        """Tell everybody whether this member has failed; hear the first failure there is, by rank.

        Raises:
            TransferFailed: as for ``broadcast``.
        """
        own, blocks = as_block(failure), empty_blocks(self.size)
        self._wait(lambda: self._group.allgather([blocks], [own]))
        return first_text(blocks)

    def close(self, reason: str | None = None) -> None:
        """Leave the group.

        Args:
            reason: what failed; members that still wait hear of it within a second.
        """
        if self._group is None:
            return
        if reason is not None:
            self._first_word(reason)
        held = [self._group, self._works]
        self._group, self._works = None, []
        # Gloo's destructor waits for what is still under way, up to the limit. Nobody else need wait with it.
        threading.Thread(target=held.clear, name="transfer-channel-close", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, begin: Callable[[], Any]) -> None:
        until = time.monotonic() + self.seconds
        works = self._works  # not a local of this frame: a traceback would keep it, and its destructor waits
        try:
            works.append(begin())
            while not self._look(works[-1], until):
                self._listen()
        except RuntimeError as error:
            silent = time.monotonic() >= until
            own = (
                f"a member of the transfer did not answer within {self.seconds:g} s"
                if silent
                else f"a member of the transfer is gone: {first_line(error)}"
            )
            raise TransferFailed(self._first_word(own)) from error
        works.pop()

    @staticmethod
    def _look(work: Any, until: float) -> bool:
        """Wait a little; whether it is complete."""
        left = until - time.monotonic()
        try:
            work.wait(timedelta(seconds=max(0.001, min(_SLICE, left))))
        except RuntimeError as error:
            if work.is_completed():
                # It ended in this moment: well, or with an error of its own.
                work.wait(timedelta(seconds=_SLICE))
                return True
            if left <= 0 or "timed out" not in str(error).lower():
                raise
            return False
        return True

    def _listen(self) -> None:
        """Raise what the alarm raises, or what another member has said on leaving."""
        self.alarm()
        try:
            said = self._store.check(["failure"]) and self._store.get("failure").decode(errors="replace")
        except dist.DistError:
            return  # the trainer stands still or is gone: the wait itself will tell
        if said:
            raise TransferFailed(said)

    def _first_word(self, own: str) -> str:
        """The sentence of whoever failed first; ours when nobody did or nobody can say."""
        try:
            said: bytes = self._store.compare_set("failure", "", own)
        except (dist.DistError, RuntimeError):
            return own
        return said.decode(errors="replace") or own
