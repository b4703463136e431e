"""The scenarios of worker IPC: how the worker processes come into being."""

from __future__ import annotations

import multiprocessing
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class IpcScenario:
    """One way to start workers.

    Attributes:
        start_method: ``spawn``, ``forkserver`` or ``fork``; a subject that has only one way of its own runs in
            ``spawn`` and is not applicable to the others.
    """

    start_method: str

    @property
    def id(self) -> str:
        return self.start_method

    @property
    def ranks(self) -> int:
        return 0

    def missing(self) -> str | None:
        if self.start_method not in multiprocessing.get_all_start_methods():
            return f"this system cannot start processes by {self.start_method}"
        return None


def full(device: str) -> Sequence[IpcScenario]:  # noqa: ARG001 - processes have no device
    """Every start method."""
    return [IpcScenario(method) for method in ("spawn", "forkserver", "fork")]


def default(device: str) -> Sequence[IpcScenario]:
    """The same: they differ in what a child inherits, which is what most faults are about."""
    return full(device)
