"""What the parent knows of one rank after one phase: its reply, or the evidence of why there is none."""

from dataclasses import dataclass

import pytest

from harness.ranks.collectives import Collective
from harness.ranks.outcome import RankOutcome, Status


@dataclass(frozen=True)
class Answer:
    """One rank's part of one phase."""

    rank: int
    status: Status
    at: float
    """``time.monotonic()`` when it ended: the key that finds the first failure."""
    detail: str = ""
    """The exception, the signal, the reason of a skip, or where it was stuck; one line."""
    report: pytest.TestReport | None = None
    """The rank's own report; None when it gave none."""
    text: str = ""
    """What to print of a rank that has no report: traceback or reason in full."""
    exit_status: int | None = None
    stack: str = ""
    """Every thread's stack."""
    collective: Collective | None = None
    """The last collective in torch's flight recorder; asked for when a rank was stuck."""
    recorded: bool = False
    """The recorder was read: no collective then means that the rank began none."""
    output: str = ""
    """What a rank that has no report had written."""
    exit_reason: str | None = None
    """The test called ``pytest.exit``."""
    changes: tuple[str, ...] = ()
    """What the test left changed in the rank's process."""
    leaks: tuple[str, ...] = ()
    """Resources that the test did not give back."""
    usable: bool = True
    """The rank can be asked again; never true of one that is gone."""

    def __post_init__(self) -> None:
        if self.status in {"died", "stuck", "silent"}:
            object.__setattr__(self, "usable", False)

    @property
    def failed(self) -> bool:
        """Anything but a pass, a skip or an expected failure."""
        return self.status in {"raised", "died", "collateral", "stuck", "silent"}

    def outcome(self) -> RankOutcome:
        """The public form."""
        properties = tuple(self.report.user_properties) if self.report is not None else ()
        detail = self.detail + (f"; {self.collective}" if self.collective and self.failed else "")
        return RankOutcome(self.rank, self.status, detail, self.exit_status, self.stack, properties)


def root_of(answers: list[Answer]) -> Answer:
    """The failure that came first, among those that no other rank's failure explains where there are any.

    A death counts as earlier than an exception that says a peer went away; a rank that had to be ended is a
    cause only when nothing else failed.
    """
    failures = [answer for answer in answers if answer.failed]
    order = {"raised": 0, "died": 0, "collateral": 1, "stuck": 2, "silent": 2}
    return min(failures, key=lambda answer: (order[answer.status], answer.at, answer.rank))
