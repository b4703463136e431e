"""What a meter hands back: the figures of one measured block, and who allocated them."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.errors import HarnessError


@dataclass(frozen=True)
class Site:
    """One place in the source that held memory at the peak.

    ``bytes`` counts what was live at the moment of the peak, not what was allocated over time.
    """

    file: str
    line: int
    function: str
    bytes: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class MeasurementPending(HarnessError):
    """A figure was read before its block had ended."""


@dataclass
class Measurement:
    """The result of one ``measure()`` block; its figures exist once the block has ended.

    Attributes:
        meter: what measured (``memray`` or ``cuda``); figures of different meters do not compare.
    """

    meter: str
    _peak: int | None = field(default=None, repr=False)
    _retained: int | None = field(default=None, repr=False)
    _sites: tuple[Site, ...] = field(default=(), repr=False)

    @property
    def peak_bytes(self) -> int:
        """Highest number of live bytes above those that were live at entry.

        Raises:
            MeasurementPending: the block has not ended.
        """
        return self._read(self._peak)

    @property
    def retained_bytes(self) -> int:
        """Bytes allocated in the block and still live at its end, after a garbage collection.

        Raises:
            MeasurementPending: the block has not ended.
        """
        return self._read(self._retained)

    def top(self, count: int) -> tuple[Site, ...]:
        """The ``count`` sites that held most bytes at the peak, largest first (fewer if there were fewer)."""
        return self._sites[:count]

    def finish(self, *, peak: int, retained: int, sites: tuple[Site, ...]) -> None:
        """Called once, by the meter, when the block ends."""
        self._peak, self._retained = peak, retained
        self._sites = tuple(sorted(sites, key=lambda site: -site.bytes))

    def _read(self, value: int | None) -> int:
        if value is None:
            raise MeasurementPending(
                "this measurement is still running: read its figures after the `with measure()` block has ended"
            )
        return value
