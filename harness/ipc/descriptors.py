"""Descriptors that are this process's alone: whoever forks a child, the child closes them before it does anything.

An end of a pipe held by a process that has no business with it is how hangs are made: its owner dies, and the other
side never sees the end of file. Executed children are safe (descriptors are not inherited by ``exec``), forked ones
are not, and anybody may fork: this package under the start method ``fork``, a user's own ``os.fork``, another pool.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_closers: dict[int, Callable[[], None]] = {}


def keep_from_children(descriptor: int, close: Callable[[], None] | None = None) -> None:
    """Close ``descriptor`` in every child forked from now on.

    Args:
        descriptor: an open descriptor.
        close: closes it; give the object's own method where an object owns it, which must know that it is closed.
    """
    _closers[descriptor] = close or (lambda: os.close(descriptor))


def forget(descriptor: int) -> None:
    """``descriptor`` is about to be closed here, and its number may soon mean something else."""
    _closers.pop(descriptor, None)


def _close_in_child() -> None:
    for close in list(_closers.values()):
        with contextlib.suppress(OSError):
            close()
    _closers.clear()


os.register_at_fork(after_in_child=_close_in_child)
