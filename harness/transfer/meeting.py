"""How a trainer and its engine's workers find each other, so that one that cannot come is missed by name.

Workers sign in on the trainer's store before anybody builds the group: building it blocks without a word.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from harness.transfer.blocks import first_line
from harness.transfer.channel import Channel, host_store, reach_store
from harness.transfer.errors import TransferFailed
from harness.transfer.orders import Connect

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK_S = 1.0  # between two looks at the alarm; torch logs a line at each
_count = itertools.count()


class Meeting:
    """The trainer's side. It hosts the store, which lives as long as this object.

    Args:
        size: members: the trainer and every worker.
        address: IP address of this machine that the workers can reach.
        seconds: limit of every wait.
    """

    def __init__(self, size: int, *, address: str, seconds: float) -> None:
        self._size, self._address, self._seconds = size, address, seconds
        self._store = host_store(address, seconds)
        self.order = Connect(address, self._store.port, f"{os.getpid()}.{next(_count)}", size, seconds)

    def gather(self, alarm: Callable[[], None]) -> tuple[Channel, bool]:
        """Wait for every worker.

        Args:
            alarm: called several times a second; what it raises ends the wait.

        Returns:
            The channel, and whether an earlier update was left open on the engine.

        Raises:
            TransferFailed: a worker refused or did not come, with its word or its number.
        """
        board = _board(self._store, self.order)
        until = time.monotonic() + self._seconds
        left_open = False
        for rank in range(1, self._size):
            said = json.loads(_await(board, f"joined/{rank}", until, alarm, f"engine worker {rank - 1}"))
            if "failure" in said:
                raise TransferFailed(said["failure"])
            left_open |= said["open"]
        board.set("go", "")
        channel = Channel(
            self._store,
            self.order.session,
            0,
            self._size,
            address=self._address,
            seconds=self._seconds,
            alarm=alarm,
        )
        return channel, left_open


def join(order: Connect, rank: int, *, left_open: bool) -> Channel:
    """A worker's side.

    Args:
        order: what the trainer sent.
        rank: of this worker in the group, from 1.
        left_open: whether an update was begun here and never finished.

    Raises:
        TransferFailed: the trainer is not there, or not all came.
    """
    store = reach_store(order.address, order.port, order.seconds)
    board = _board(store, order)
    board.set(f"joined/{rank}", json.dumps({"open": left_open}))
    _await(
        board, "go", time.monotonic() + order.seconds, lambda: None, "the trainer's word that all have come"
    )
    return Channel(store, order.session, rank, order.size, address=order.address, seconds=order.seconds)


def _board(store: Any, order: Connect) -> Any:
    return dist.PrefixStore(f"meeting/{order.session}", store)  # type: ignore[attr-defined]


def _await(board: Any, key: str, until: float, alarm: Callable[[], None], what: str) -> bytes:
    waited = until - time.monotonic()
    while True:
        try:
            board.wait([key], timedelta(seconds=_LOOK_S))
            value: bytes = board.get(key)
        except dist.DistStoreError as error:
            alarm()
            if time.monotonic() >= until:
                raise TransferFailed(f"{what} did not come within {waited:.0f} s") from error
        except dist.DistError as error:
            raise TransferFailed(f"{what} did not come: {first_line(error)}") from error
        else:
            return value
