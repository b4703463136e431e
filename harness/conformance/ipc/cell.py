"""One cell of an IPC check, in the controller: has its act performed elsewhere, and turns the end into a verdict."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.conformance.ipc.disposable import SETTLE_S, Outcome, perform
from harness.conformance.verdict import Kind, NotApplicable, Violation
from harness.errors import HarnessError
from harness.ipc.failure import describe_exit

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.ipc.scenarios import IpcScenario
    from harness.conformance.ipc.trial import Trial
    from harness.subjects import Subject

    Play: TypeAlias = Callable[[Trial], None]

DEADLINE_S = 12.0
ORPHANS_S = 5.0
"""How long processes may outlive their owner."""
_TIMELINE = 25


class IpcCell:
    """A subject and a scenario; the check says what to act.

    Args:
        subject: the implementation under test.
        scenario: how its workers start.
        limit: seconds that the whole cell may take.
    """

    def __init__(self, subject: Subject, scenario: IpcScenario, limit: float) -> None:
        self.subject = subject
        self.evidence: dict[str, Any] = {}
        self._scenario = scenario
        self._limit = limit

    def act(self, play: Play, deadline: float = DEADLINE_S) -> None:
        """Have ``play`` performed; it must come to its end by itself and leave nobody behind.

        Args:
            play: a function of a module; it runs in a process of its own.
            deadline: seconds, multiplied by the subject's patience.
        """
        self._judge(self._perform(play, deadline))

    def act_each(self, plays: dict[str, Play], deadline: float = DEADLINE_S) -> None:
        """Have several performed side by side, each as by :meth:`act`, and report every one that fails."""
        with ThreadPoolExecutor(len(plays)) as stage:
            outcomes = list(stage.map(lambda play: self._perform(play, deadline), plays.values()))
        failed: dict[str, Violation] = {}
        for label, outcome in zip(plays, outcomes, strict=True):
            try:
                self._judge(outcome)
            except Violation as violation:
                failed[label] = violation
            self.evidence[label] = str(failed.get(label, "passed"))
        if failed:
            (label, first), *_ = failed.items()
            count = f"{len(failed)} of {len(plays)}: " if len(plays) > 1 else ""
            raise Violation(first.kind, f"{count}{label}: {first.message}")

    def act_to_death(self, play: Play, deadline: float = DEADLINE_S) -> Outcome:
        """Have ``play`` performed, which ends its own process by SIGKILL; nobody may outlive it by 5 seconds."""
        outcome = self._perform(play, deadline, settle=ORPHANS_S)
        if outcome.status != -signal.SIGKILL or outcome.last("doomed") is None:
            self._judge(outcome)
            raise HarnessError("the act ended before it had killed its process")
        self._note(outcome)
        if outcome.left:
            self._blame_leftovers(outcome, f"lost its owner by SIGKILL {ORPHANS_S:g} s ago")
        return outcome

    def _perform(self, play: Play, deadline: float, settle: float = SETTLE_S) -> Outcome:
        patience = float(getattr(self.subject.load("ipc"), "patience", 1.0))
        arguments = {
            "subject": self.subject.targets["ipc"],
            "scenario": self._scenario.id,
            "act": f"{play.__module__}:{play.__qualname__}",
        }
        return perform(arguments, min(deadline * patience, self._limit), settle)

    def _note(self, outcome: Outcome) -> None:
        for note in outcome.notes:
            self.evidence.update(note.get("evidence", {}))
        if outcome.last("triggered"):
            self.evidence["triggered"] = True

    def _judge(self, outcome: Outcome) -> None:
        self._note(outcome)
        reason, violation, error = (outcome.last(key) for key in ("not_applicable", "violation", "error"))
        if reason is not None:
            raise NotApplicable(str(reason))
        if outcome.last("done") and outcome.status is not None and not outcome.left:
            return
        self._keep_trace(outcome)
        step = outcome.last("step") or "starting"
        if violation is not None:
            raise Violation(Kind(violation["kind"]), violation["message"])
        if error is not None:
            raise HarnessError(f"the check itself failed:\n{error}")
        if outcome.status is None:
            where = "its process did not exit" if outcome.last("done") else f"it stood still at: {step}"
            raise Violation(Kind.HANG, f"no end within {outcome.seconds:.0f} s; {where}")
        if not outcome.last("done"):
            raise Violation(
                Kind.DIED, f"the process that owned the pool {describe_exit(outcome.status)}, at: {step}"
            )
        self._blame_leftovers(outcome, "was closed, and whose owner has ended")

    def _blame_leftovers(self, outcome: Outcome, when: str) -> None:
        self._keep_trace(outcome)
        self.evidence["left"] = [str(leftover) for leftover in outcome.left]
        raise Violation(
            Kind.ORPHAN,
            f"{len(outcome.left)} process(es) outlived a pool that {when}: {outcome.left[0]}",
        )

    def _keep_trace(self, outcome: Outcome) -> None:
        timeline = [f"{note['at']:.3f} s: {note['step']}" for note in outcome.notes if "step" in note]
        self.evidence["timeline"] = timeline[-_TIMELINE:]
        self.evidence["exit_status"] = outcome.status
        if outcome.errors.strip():
            self.evidence["stderr"] = outcome.errors
