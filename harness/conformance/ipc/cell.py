"""One cell of an IPC check, in the controller: has its act performed elsewhere, and turns the end into a verdict."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.conformance.ipc.ahead import DEADLINE_S, ORPHANS_S, Ahead, Director
from harness.conformance.verdict import Kind, NotApplicable, Violation
from harness.errors import HarnessError
from harness.ipc.failure import describe_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.ipc.ahead import Order
    from harness.conformance.ipc.disposable import Outcome
    from harness.conformance.ipc.trial import Trial

    Play: TypeAlias = Callable[[Trial], None]

_TIMELINE = 25


class IpcCell:
    """A subject in a scenario; the check says what to act.

    Attributes:
        subject: the subject's class.
        evidence: facts, as JSON values.
    """

    def __init__(self, director: Director, ahead: Ahead, on_pass: Callable[[], None]) -> None:
        """Perform nothing yet.

        Args:
            director: gives the orders for the subject in the scenario.
            ahead: performs them.
            on_pass: called when an act has been performed and found in order.
        """
        self.subject = director.subject.load("ipc")
        self.evidence: dict[str, Any] = {}
        self._director = director
        self._ahead = ahead
        self._on_pass = on_pass

    def act(self, play: Play, deadline: float = DEADLINE_S) -> None:
        """Have ``play`` performed; it must come to its end by itself and leave nobody behind.

        Args:
            play: a function of a module; it runs in a process of its own.
            deadline: seconds, multiplied by the subject's patience.
        """
        (outcome,) = self._perform([self._director.order(play, deadline)])
        self._judge(outcome)

    def act_each(self, plays: dict[str, Play], deadline: float = DEADLINE_S) -> None:
        """Have several performed, each as by :meth:`act`, and report every one that fails."""
        orders = [self._director.order(play, deadline) for play in plays.values()]
        failed: dict[str, Violation] = {}
        reasons: list[NotApplicable] = []
        for label, outcome in zip(plays, self._perform(orders), strict=True):
            try:
                self._judge(outcome)
            except Violation as violation:
                failed[label] = violation
                self.evidence[label] = violation.message
            except NotApplicable as reason:
                reasons.append(reason)
                self.evidence[label] = f"not applicable: {reason}"
            else:
                self.evidence[label] = "passed"
        if len(reasons) == len(plays):
            raise reasons[0]
        if failed:
            (label, first), *_ = failed.items()
            raise Violation(first.kind, f"{len(failed)} of {len(plays)}: {label}: {first.message}")

    def act_to_death(self, play: Play, deadline: float = DEADLINE_S) -> Outcome:
        """Have ``play`` performed, which ends its own process by SIGKILL; nobody may outlive it by 5 seconds."""
        (outcome,) = self._perform([self._director.order(play, deadline, ORPHANS_S)])
        if outcome.status != -signal.SIGKILL or outcome.last("doomed") is None:
            self._judge(outcome)
            raise HarnessError("the act ended before it had killed its process")
        self._note(outcome)
        if outcome.left:
            self._blame_leftovers(outcome, f"lost its owner by SIGKILL {ORPHANS_S:g} s ago")
        return outcome

    def _perform(self, orders: list[Order]) -> list[Outcome]:
        return self._ahead.outcomes(orders, alone=self._director.alone)

    def _note(self, outcome: Outcome) -> None:
        for note in outcome.notes:
            self.evidence.update(note.get("evidence", {}))
        self.evidence["acted_seconds"] = max(outcome.seconds, self.evidence.get("acted_seconds", 0))
        if outcome.last("triggered"):
            self.evidence["triggered"] = True

    def _judge(self, outcome: Outcome) -> None:
        self._note(outcome)
        reason, violation, error = (outcome.last(key) for key in ("not_applicable", "violation", "error"))
        if reason is not None:
            raise NotApplicable(str(reason))
        if outcome.last("done") and outcome.status is not None and not outcome.left:
            self._on_pass()
            return
        self._keep_trace(outcome)
        if not outcome.notes and outcome.status is not None:  # it never reached the subject
            raise HarnessError(
                f"the act's process {describe_exit(outcome.status)} before it began: {outcome.errors}"
            )
        step = outcome.last("step") or "starting"
        if violation is not None:
            raise Violation(Kind(violation["kind"]), violation["message"])
        if error is not None:
            raise HarnessError(f"the check itself failed:\n{error}")
        if outcome.status is None:
            where = "its process did not exit" if outcome.last("done") else f"it stood still at: {step}"
            hang = f"no end within {outcome.seconds:.0f} s; {where}"
            if first := outcome.last("first"):
                raise Violation(Kind(first["kind"]), f"{first['message']}; and then {hang}")
            raise Violation(Kind.HANG, hang)
        if not outcome.last("done"):
            raise Violation(
                Kind.DIED, f"the process that owned the pool {describe_exit(outcome.status)}, at: {step}"
            )
        self._blame_leftovers(outcome, "was closed, and whose owner has ended")

    def _blame_leftovers(self, outcome: Outcome, when: str) -> None:
        self._keep_trace(outcome)
        left = sorted(outcome.left, key=lambda leftover: leftover.is_helper)
        self.evidence["left"] = [str(leftover) for leftover in left]
        raise Violation(Kind.ORPHAN, f"{len(left)} process(es) outlived a pool that {when}: {left[0]}")

    def _keep_trace(self, outcome: Outcome) -> None:
        timeline = [f"{note['at']:.3f} s: {note['step']}" for note in outcome.notes if "step" in note]
        self.evidence["timeline"] = timeline[-_TIMELINE:]
        self.evidence["exit_status"] = outcome.status
        if outcome.errors.strip():
            self.evidence["stderr"] = outcome.errors
