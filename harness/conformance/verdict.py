"""What a check says about a subject on a scenario: a verdict, its kind, and the evidence for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """The five words a cell can end with; only ``FAIL`` speaks against the subject."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"
    NOT_RUN = "not-run"
    ERROR = "error"


class Kind(StrEnum):
    """How a subject failed. Permanent: baselines of known failures name them."""

    WRONG = "wrong"  # a value, an order or an answer differs from what the requirement says
    STALE = "stale"  # an earlier value, or the answer to an earlier request
    HANG = "hang"  # no end within the cell's deadline
    RAISED = "raised"  # the subject raised where the requirement wants it to work
    SILENT = "silent"  # a failure was not reported
    DIED = "died"  # a process of the subject ended where it had to live
    ORPHAN = "orphan"  # a process outlived its owner
    LEAK = "leak"  # memory, descriptors or shared memory stayed behind
    OVER_BOUND = "over-bound"  # more bytes or seconds than the formula allows
    LEAKED_NAME = "leaked-name"  # a name of the adapter or the wrapper reached the engine
    MISSING = "missing"  # something that had to arrive did not
    DRIFT = "drift"  # the model afterwards is not the model before
    BROKEN = "broken-adapter"  # the subject does not start or yields nothing: not judged further


class Violation(AssertionError):
    """A subject broke a requirement; raised by a check, after every rank has finished its part.

    Args:
        kind: how.
        message: one sentence: what was expected, what was observed.
    """

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message


class SubjectRaised(Violation):
    """The subject's own code raised inside a check; its traceback is this exception's cause."""

    def __init__(self, where: str, cause: BaseException) -> None:
        super().__init__(Kind.RAISED, f"{where} raised {type(cause).__name__}: {cause}")


class NotApplicable(Exception):
    """The subject does not declare the capability that a check is about."""


@dataclass(frozen=True)
class Cell:
    """One cell of the scoreboard: a check run against a subject on a scenario.

    Attributes:
        check: id of the check, such as ``sync/peak``.
        subject: name of the subject as it was given.
        scenario: id of the scenario.
        verdict: how it ended.
        kind: how it failed; None unless the verdict is ``FAIL``.
        message: the sentence for a person: what was expected and observed, or why it did not run.
        evidence: figures and facts, as JSON values.
        seconds: wall time of the cell.
        reproduce: the one command that runs this cell again.
        detail: traceback, stacks and captured output of a cell that did not pass.
    """

    check: str
    subject: str
    scenario: str
    verdict: Verdict
    kind: Kind | None = None
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    reproduce: str = ""
    detail: str = ""

    @property
    def exercised(self) -> bool:
        """Whether the subject was judged at all."""
        return self.verdict in {Verdict.PASS, Verdict.FAIL}
