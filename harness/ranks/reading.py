"""Turn what came back for one phase (replies, failures, evidence) into one answer per rank."""

import warnings
from dataclasses import replace
from importlib import import_module
from typing import Any

import pytest

from harness.ipc.failure import Failure
from harness.ranks import causes, stacks
from harness.ranks.answer import Answer
from harness.ranks.inquest import Evidence
from harness.ranks.outcome import Status
from harness.ranks.pool import RankPool, Round
from harness.ranks.session import PhaseReply

_COLLECTIVES_S = 3.0
"""For ranks that have answered already and only wait for the next request."""


class Reader:
    """Reads the answers to one item's phases."""

    def __init__(self, item: pytest.Item, pool: RankPool, grace: float, limit: str) -> None:
        """Bind what every sentence needs.

        Args:
            item: The item in the parent.
            pool: The ranks.
            grace: Seconds that the others had once one had failed.
            limit: The item's deadline, in words.
        """
        self.item = item
        self.pool = pool
        self.grace = grace
        self.limit = limit

    def read(self, answered: Round, when: str) -> list[Answer]:
        """One answer per rank, in rank order."""
        answers = [self._reply(rank, reply) for rank, reply in answered.values.items()]
        answers += [self._failure(rank, failure, when) for rank, failure in answered.failures.items()]
        failed = [answer for answer in answers if answer.failed or answer.status == "skipped"]
        if failed:
            first = min(failed, key=lambda answer: answer.at)
            verb = "skipped" if first.status == "skipped" else "failed"
            why = f"It was ended {self.grace:g} s after rank {first.rank} had {verb}."
        else:
            why = f"It was ended at the deadline of {self.limit}."
        if answered.ended:
            answers = self._with_collectives(answers)
        answers += [self._evidence(rank, found, when, why) for rank, found in answered.ended.items()]
        return sorted(answers, key=lambda answer: answer.rank)

    def _with_collectives(self, answers: list[Answer]) -> list[Answer]:
        """Somebody was stuck: ask the others for their last collective, to say who was missing from which."""
        told = self.pool.ask_survivors("last_collective", seconds=_COLLECTIVES_S)
        return [
            replace(answer, collective=told.values[answer.rank], recorded=True)
            if answer.usable and answer.rank in told.values
            else answer
            for answer in answers
        ]

    def _reply(self, rank: int, reply: PhaseReply) -> Answer:
        self._replay(reply.warnings)
        left = reply.left
        if reply.report is None:
            detail = first_line(reply.error)
            return Answer(rank, "raised", reply.at, detail, text=reply.error, exit_reason=reply.exit_reason)
        hook = self.item.config.hook
        report = hook.pytest_report_from_serializable(config=self.item.config, data=reply.report)
        status = status_of(report, collateral=reply.collateral)
        detail = reply.error
        if status == "skipped" and isinstance(report.longrepr, tuple):
            detail = str(report.longrepr[2]).removeprefix("Skipped: ")
        elif status in {"xfailed", "xpassed"}:
            detail = report.wasxfail
        return Answer(
            rank, status, reply.at, detail, report, changes=tuple(left.changes), leaks=tuple(left.leaks)
        )

    def _failure(self, rank: int, failure: Failure, when: str) -> Answer:
        if failure.kind == "died":
            text = causes.death(rank, self.pool.spec.world_size, failure, when)
            return Answer(
                rank,
                "died",
                failure.order,
                causes.cause_of_death(failure),
                text=text,
                exit_status=failure.exit_status,
                output=self.pool.ranks.output_of(rank),
            )
        text = f"rank {rank} could not report its {when}\n{causes.told(failure)}"
        return Answer(rank, "raised", failure.at, first_line(failure.headline()), text=text, usable=False)

    def _evidence(self, rank: int, found: Evidence, when: str, why: str) -> Answer:
        place = "" if found.silent else f"at {found.place}"
        return Answer(
            rank,
            "silent" if found.silent else "stuck",
            found.at,
            place,
            text=causes.stuck(f"rank {rank} of {self.pool.spec.world_size}", when, found, why),
            exit_status=found.exit_status,
            stack=stacks.without_machinery(found.stack),
            collective=found.collective,
            recorded=found.collective is not None,
            output=found.output,
        )

    def _replay(self, recorded: list[dict[str, Any]]) -> None:
        for warning in recorded:
            message = warnings.WarningMessage(
                message=warning["message"],
                category=_category(warning["module"], warning["category"]),
                filename=warning["filename"],
                lineno=warning["lineno"],
            )
            about = {name: warning[name] for name in ("when", "nodeid", "location")}
            self.item.ihook.pytest_warning_recorded.call_historic(
                kwargs={"warning_message": message, **about}
            )


def status_of(report: pytest.TestReport, *, collateral: bool = False) -> Status:
    """Classify one rank's own report."""
    if report.failed:
        return "collateral" if collateral else "raised"
    expected = hasattr(report, "wasxfail")
    if report.skipped:
        return "xfailed" if expected else "skipped"
    return "xpassed" if expected else "passed"


def first_line(text: str) -> str:
    """The headline of a longer text."""
    return text.strip().partition("\n")[0]


def _category(module: str, name: str) -> type[Warning]:
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError):  # a category that exists on the ranks only
        return UserWarning
    return found if isinstance(found, type) and issubclass(found, Warning) else UserWarning
