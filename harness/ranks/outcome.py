"""What one rank did in one phase of a test: the data behind every verdict and every line of a report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["passed", "skipped", "xfailed", "xpassed", "raised", "died", "collateral", "stuck", "silent"]


@dataclass(frozen=True)
class RankOutcome:
    """How one rank ended one phase (setup, call or teardown) of one test.

    It travels with the test report (``report.ranks``), through xdist and into every record, so it is plain
    data.
    """

    rank: int
    """Which rank, from 0."""
    status: Status
    """``raised`` is a failure of its own, ``collateral`` one that another rank's failure caused, ``died`` a
    process that ended without a report, ``stuck`` one that was shown (by its stack) to wait and was ended,
    ``silent`` one that did not even answer the request for its stack."""
    detail: str = ""
    """One line: the exception, the signal, the reason of a skip, or where and in which collective it was
    stuck."""
    exit_status: int | None = None
    """Exit status of a process that died or was ended, negative for a signal, as ``Process.exitcode`` has
    it."""
    stack: str = ""
    """All threads' stacks, most recent call first, of a rank that was ended."""
    user_properties: tuple[tuple[str, Any], ...] = field(default=())
    """What ``record_property`` recorded on this rank so far."""

    def as_data(self) -> dict[str, Any]:
        """Plain containers only, for xdist's wire."""
        return {**vars(self), "user_properties": [list(pair) for pair in self.user_properties]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "RankOutcome":
        """The inverse of ``as_data``."""
        properties = tuple((name, value) for name, value in data["user_properties"])
        return cls(**{**data, "user_properties": properties})
