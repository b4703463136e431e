"""The CUDA meter: the caching allocator's own count of requested bytes.

``requested_bytes`` is what callers asked for; ``allocated`` rounds up to 512 bytes and ``reserved`` depends on
fragmentation, so neither is a figure to assert on. NCCL's buffers and the context are outside the allocator.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.memory.measurement import Measurement, Site

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

PEAK = "requested_bytes.all.peak"
CURRENT = "requested_bytes.all.current"
_HISTORY = 200_000  # allocator events kept: a sync of a few hundred tensors makes some thousands


class CudaMeter:
    """Peak of requested bytes above entry on one CUDA device, synchronised on both ends.

    Args:
        device: a torch device string, ``cuda`` for the current device or ``cuda:INDEX``.

    Raises:
        UsageError: torch sees no CUDA device here.
    """

    def __init__(self, device: str = "cuda") -> None:
        import torch

        if not torch.cuda.is_available():
            raise UsageError(
                f"cannot measure memory of {device!r}: torch sees no CUDA device on this machine"
            )
        self._device = torch.device(device)

    @contextmanager
    def __call__(self) -> Iterator[Measurement]:
        from torch import cuda

        measurement = Measurement("cuda")
        gc.collect()
        cuda.synchronize(self._device)
        cuda.reset_peak_memory_stats(self._device)
        entry = cuda.memory_stats(self._device)[CURRENT]
        cuda.memory._record_memory_history(max_entries=_HISTORY, stacks="python")  # noqa: SLF001 - the one way
        try:
            yield measurement
        finally:
            gc.collect()
            cuda.synchronize(self._device)
            stats = cuda.memory_stats(self._device)
            index = cuda.current_device() if self._device.index is None else self._device.index
            events = cuda.memory._snapshot()["device_traces"][index]  # noqa: SLF001
            cuda.memory._record_memory_history(enabled=None)  # noqa: SLF001
            measurement.finish(
                peak=stats[PEAK] - entry,
                retained=stats[CURRENT] - entry,
                sites=sites_at_peak(events),
            )


def sites_at_peak(events: Iterable[dict[str, Any]]) -> tuple[Site, ...]:
    """Replay allocator events and sum what was live at the highest point over the innermost Python frames.

    Args:
        events: ``device_traces`` of one device as in torch's memory snapshot: dicts with ``action`` (``alloc``,
            ``free_completed``, others ignored), ``addr``, ``size`` in bytes and ``frames``.
    """
    live: dict[int, tuple[int, tuple[str, int, str]]] = {}
    total = peak = 0
    at_peak: list[tuple[int, tuple[str, int, str]]] = []
    rising = False
    for event in events:
        if event["action"] == "alloc":
            live[event["addr"]] = (event["size"], _innermost(event.get("frames", ())))
            total += event["size"]
            rising = rising or total > peak
            peak = max(peak, total)
        elif event["action"] == "free_completed" and event["addr"] in live:
            if rising:
                at_peak, rising = list(live.values()), False
            total -= live.pop(event["addr"])[0]
    if rising:
        at_peak = list(live.values())
    sums: dict[tuple[str, int, str], int] = {}
    for size, site in at_peak:
        sums[site] = sums.get(site, 0) + size
    return tuple(Site(*site, size) for site, size in sums.items())


def _innermost(frames: Iterable[dict[str, Any]]) -> tuple[str, int, str]:
    for frame in frames:
        if frame["filename"].endswith(".py"):
            return frame["filename"], frame["line"], frame["name"]
    return "?", 0, "<native>"
