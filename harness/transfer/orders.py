"""What travels beside the weights: orders over the engine's control plane, and the heads of what is broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from harness.transfer.channel import Channel


@dataclass
class Connect:
    """Where an engine's workers meet their trainer (``init_weight_transfer_engine``)."""

    address: str
    """IP address on which the trainer hosts its store, and whose interface carries the weights."""
    port: int
    session: str
    """Name of the meeting, new each time."""
    size: int
    """Members: one trainer and every worker of the engine."""
    seconds: float
    """Limit of every wait."""


@dataclass
class Update:
    """What is about to be broadcast (``update_weights``)."""

    manifest: list[list[Any]]
    """Rows of name, dtype and shape, in stream order."""
    version: str
    """What the trainer calls these weights."""


class Head(IntEnum):
    """What follows in the group."""

    CHUNK = 1
    """That many bytes of the stream, then an agreement."""
    DONE = 2
    """The stream is complete: check it, then an agreement."""
    ABORT = 3
    """The trainer has failed: an agreement in which it says how."""
    COMMIT = 4
    """Everybody has everything: the next ``finish_weight_update`` loads it. Then an agreement."""


def announce(channel: Channel, head: Head, nbytes: int = 0) -> None:
    """Trainer: say what follows."""
    channel.broadcast(torch.tensor([head, nbytes], dtype=torch.int64))


def hear(channel: Channel) -> tuple[Head, int]:
    """Worker: what follows, and how many bytes."""
    told = torch.zeros(2, dtype=torch.int64)
    channel.broadcast(told)
    return Head(int(told[0])), int(told[1])
