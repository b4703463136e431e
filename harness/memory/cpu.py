"""The CPU meter: memray, which sees every allocation of the process, whoever makes it.

memray gave the same peak to within half a KiB over five fresh processes, where resident set size varied by two
thirds; so figures are gated on memray and RSS is only ever shown.

The interpreter takes room for objects of up to 512 bytes from the system a MiB at a time, in arenas. Whether a block
happens to need the next one depends on all that ran before it, and a MiB is as much as a small model's tensors: so room
for several is provided before a block begins, and only what small objects take beyond that is counted.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.errors import MissingLibrary, UsageError
from harness.memory.measurement import Measurement, Site

if TYPE_CHECKING:
    from collections.abc import Iterator

SMALL = 512  # bytes: the largest object that the interpreter puts into an arena
RESERVE = 4 << 20  # bytes of small objects for which room is provided

_running = threading.Lock()  # memray allows one tracker in a process


class MemrayMeter:
    """Peak above entry by memray's aggregated allocations (about 1.2 times the block's own time)."""

    def __init__(self) -> None:
        try:
            import memray  # noqa: F401
        except ImportError:
            raise MissingLibrary("memray", "zero3", "measuring memory on CPU") from None

    @contextmanager
    def __call__(self) -> Iterator[Measurement]:
        import memray

        if not _running.acquire(blocking=False):
            raise UsageError("a memory measurement is already running in this process: blocks do not nest")
        try:
            measurement = Measurement("memray")
            with tempfile.TemporaryDirectory(prefix="harness-memory-") as folder:
                record = Path(folder) / "allocations.bin"
                gc.collect()
                provided = _room_for_small_objects()
                try:
                    with memray.Tracker(record, file_format=memray.FileFormat.AGGREGATED_ALLOCATIONS):
                        try:
                            yield measurement
                        finally:
                            gc.collect()
                finally:
                    del provided
                    _read(record, measurement)
        finally:
            _running.release()


def _room_for_small_objects() -> list[bytes]:
    """Let the interpreter take its arenas now; while what is returned lives, it gives none of them back."""
    objects = [bytes(SMALL - sys.getsizeof(b"")) for _ in range(RESERVE // SMALL)]
    return objects[:: (1 << 20) // SMALL // 4]  # a few in each arena


def _read(record: Path, measurement: Measurement) -> None:
    import memray

    reader = memray.FileReader(record)
    at_peak = list(reader.get_high_watermark_allocation_records(merge_threads=True))
    left = list(reader.get_leaked_allocation_records(merge_threads=True))
    measurement.finish(
        peak=sum(r.size for r in at_peak),
        retained=sum(r.size for r in left),
        sites=_by_site(at_peak),
    )


def _by_site(records: list[Any]) -> tuple[Site, ...]:
    """Sum records over the innermost Python frame of each."""
    totals: dict[tuple[str, int, str], int] = {}
    for record in records:
        frames = record.stack_trace(max_stacks=1)
        function, file, line = frames[0] if frames else ("<native thread>", "?", 0)
        key = (file, line, function)
        totals[key] = totals.get(key, 0) + record.size
    return tuple(Site(file, line, function, size) for (file, line, function), size in totals.items())
