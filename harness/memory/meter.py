"""The seam between what is measured and what measures it: one meter for each kind of device."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from harness.memory.measurement import Measurement


class Meter(Protocol):
    """Measures the live bytes of one device over a block of code, in this process only."""

    def __call__(self) -> AbstractContextManager[Measurement]:
        """Enter to start measuring; the measurement's figures exist after the exit."""
        ...


def meter_for(device: str) -> Meter:
    """The meter for ``device``, a torch device string such as ``cpu``, ``cuda`` or ``cuda:1``.

    Raises:
        UsageError: no meter exists for that kind of device.
        MissingLibrary: the meter's library is not installed.
    """
    kind = device.partition(":")[0]
    if kind == "cpu":
        from harness.memory.cpu import MemrayMeter

        return MemrayMeter()
    if kind == "cuda":
        from harness.memory.cuda import CudaMeter

        return CudaMeter(device)
    raise UsageError(f"no memory meter for device {device!r}: expected 'cpu' or 'cuda' (or 'cuda:INDEX')")


@contextmanager
def measure(device: str = "cpu") -> Iterator[Measurement]:
    """Measure peak and retained bytes of the enclosed block on ``device``.

    Warm up first: an import, a first matrix product or a first collective inside the block is counted in it.
    Blocks do not nest.

    Raises:
        UsageError: no meter for that device, or a measurement is already running in this process.
    """
    with meter_for(device)() as measurement:
        yield measurement
