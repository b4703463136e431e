"""Run one item on all ranks of a pool, phase by phase, and report it as if it had run here."""

import time
import warnings
from importlib import import_module
from typing import Any

import pytest

from harness.ipc.failure import Failure
from harness.ranks import causes
from harness.ranks.answer import Answer
from harness.ranks.deadline import Deadline, deadline_of
from harness.ranks.inquest import Evidence
from harness.ranks.marker import RankSpec
from harness.ranks.outcome import Status
from harness.ranks.pool import RankPool
from harness.ranks.pools import PoolNotStarted, RankPools
from harness.ranks.session import PhaseReply
from harness.ranks.verdict import When, refusal, verdict

_CLEAN_UP_GRACE = 5.0
"""Times the grace: what fixtures of the surviving ranks get to tear down after a failure."""


class LockstepItem:
    """One item's run on its ranks: ``run`` yields a report per phase, as pytest's own runner would make them."""

    def __init__(self, item: pytest.Item, spec: RankSpec, pools: RankPools, grace: float) -> None:
        self.item = item
        self.spec = spec
        self.pools = pools
        self.grace = grace
        self.exit_reason: str | None = None
        self.changes: list[str] = []
        self._broken = False
        self._failed = False

    def run(self, next_id: str | None) -> "list[pytest.TestReport]":
        """Run all phases, reporting each as it ends.

        Args:
            next_id: What this pool runs next, or None: then every fixture is torn down.
        """
        try:
            pool = self.pools.get(self.spec)
        except PoolNotStarted as refused:
            return [self._log(refusal(self.item, str(refused)))]
        deadline = deadline_of(self.item)
        try:
            reports = self._phases(pool, deadline, next_id)
        except BaseException:
            self.pools.retire(self.spec)  # interrupted: the ranks are in the middle of something
            raise
        if self._failed or self._broken or self.changes:
            self.pools.retire(self.spec)
        return reports

    def _phases(self, pool: RankPool, deadline: Deadline, next_id: str | None) -> "list[pytest.TestReport]":
        reports = [self._phase(pool, "setup", deadline.whole, deadline, self.item.nodeid, next_id)]
        if reports[0].passed and not self.item.config.getoption("setuponly", False):
            reports.append(self._phase(pool, "call", deadline.of_call(), deadline))
        session = self.item.session
        if self._failed or session.shouldfail or session.shouldstop:
            next_id = None  # this pool ends, or the session does: what lives must be torn down now
        if self._broken:
            self._clean_up(pool)
            reports.append(self._log(verdict(self.item, "teardown", [Answer(0, "passed", time.monotonic())])))
        else:
            limit = deadline.whole
            if self._failed:
                limit = min(limit, time.monotonic() + 10 * self.grace + _CLEAN_UP_GRACE)
            reports.append(self._phase(pool, "teardown", limit, deadline, next_id))
        return reports

    def _phase(
        self, pool: RankPool, when: When, limit: float, deadline: Deadline, *args: Any
    ) -> pytest.TestReport:
        answered = pool.ask(when, *args, deadline=limit, grace=self.grace, failing=_not_passed)
        answers = [self._from_reply(rank, reply) for rank, reply in answered.values.items()]
        answers += [self._from_failure(rank, failure, when) for rank, failure in answered.failures.items()]
        others = [answer for answer in answers if answer.failed]
        for rank, evidence in answered.ended.items():
            answers.append(self._from_evidence(rank, evidence, when, deadline, others))
        answers.sort(key=lambda answer: answer.rank)
        for answer in answers:
            self.exit_reason = self.exit_reason or answer.exit_reason
            self.changes += [f"rank {answer.rank}: {change}" for change in answer.changes]
        self._broken = self._broken or not all(answer.alive for answer in answers)
        report = verdict(self.item, when, answers)
        self._failed = self._failed or report.failed
        return self._log(report)

    def _clean_up(self, pool: RankPool) -> None:
        """Let the ranks that still live tear their fixtures down, for a bounded time; what they say is not a cause."""
        pool.ask("teardown", None, deadline=time.monotonic() + self.grace, grace=self.grace)

    def _log(self, report: pytest.TestReport) -> pytest.TestReport:
        self.item.ihook.pytest_runtest_logreport(report=report)
        return report

    def _from_reply(self, rank: int, reply: PhaseReply) -> Answer:
        self._replay(reply.warnings)
        if reply.report is None:
            return Answer(rank, "raised", reply.at, _first_line(reply.error), text=reply.error,
                          exit_reason=reply.exit_reason)  # fmt: skip
        report = self.item.config.hook.pytest_report_from_serializable(
            config=self.item.config, data=reply.report
        )
        status = status_of(report, collateral=reply.collateral)
        detail = reply.error
        if status == "skipped" and isinstance(report.longrepr, tuple):
            detail = str(report.longrepr[2]).removeprefix("Skipped: ")
        elif status in {"xfailed", "xpassed"}:
            detail = report.wasxfail
        return Answer(rank, status, reply.at, detail, report, changes=tuple(reply.changes))

    def _from_failure(self, rank: int, failure: Failure, when: When) -> Answer:
        pool = self.pools.get(self.spec)
        if failure.kind == "died":
            text = causes.death(rank, self.spec.world_size, failure, when)
            return Answer(rank, "died", failure.order, _first_line(text), text=text, exit_status=failure.exit_status,
                          output=pool.output_of(rank))  # fmt: skip
        text = causes.unreachable(rank, failure)
        self._broken = True  # what its session is in the middle of is unknown
        return Answer(rank, "raised", failure.at, _first_line(text), text=text)

    def _from_evidence(
        self, rank: int, evidence: Evidence, when: When, deadline: Deadline, others: list[Answer]
    ) -> Answer:
        if others:
            why = (
                f"It was ended {self.grace:g} s after rank {min(others, key=lambda a: a.at).rank} had failed."
            )
        else:
            why = f"It was ended at the deadline of {deadline.seconds:g} s ({deadline.source})."
        text = causes.stuck(rank, self.spec.world_size, when, str(evidence.place), evidence.collective, why)
        return Answer(
            rank,
            "silent" if evidence.silent else "stuck",
            evidence.at,
            f"at {evidence.place}",
            text=text,
            exit_status=evidence.exit_status,
            stack=evidence.stack,
            collective=evidence.collective,
            output=evidence.output,
        )

    def _replay(self, recorded: list[dict[str, Any]]) -> None:
        for warning in recorded:
            category = _category(warning["module"], warning["category"])
            message = warnings.WarningMessage(
                message=warning["message"],
                category=category,
                filename=warning["filename"],
                lineno=warning["lineno"],
            )
            self.item.ihook.pytest_warning_recorded.call_historic(
                kwargs={
                    "warning_message": message,
                    "when": warning["when"],
                    "nodeid": warning["nodeid"],
                    "location": warning["location"],
                }
            )


def status_of(report: pytest.TestReport, *, collateral: bool = False) -> Status:
    """Classify one rank's own report."""
    if report.failed:
        return "collateral" if collateral else "raised"
    expected = hasattr(report, "wasxfail")
    if report.skipped:
        return "xfailed" if expected else "skipped"
    return "xpassed" if expected else "passed"


def _not_passed(reply: PhaseReply) -> bool:
    return reply.report is None or reply.report["outcome"] != "passed"


def _category(module: str, name: str) -> type[Warning]:
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError):
        return UserWarning
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
