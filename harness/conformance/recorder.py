"""Turns pytest's reports into cells, in the controller: one place that decides what every outcome means."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import pytest

from harness.conformance.plugin import (
    EVIDENCE,
    NOT_APPLICABLE,
    NOT_RUN,
    TRIGGERED,
    VIOLATION,
    CellKey,
    key_of,
)
from harness.conformance.verdict import Cell, Kind, Verdict

if TYPE_CHECKING:
    from collections.abc import Generator

_SUBJECT_FRAME = "conformance/sync/subject.py"  # in a stuck rank's stack: the subject had control


class Recorder:
    """Watches the items that are cells; emits ``pytest_harness_cell`` for each when it has ended."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._keys: dict[str, CellKey] = {}
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._broken: dict[tuple[str, str], str] = {}  # (subject, domain) -> why it is judged no further

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._keys = {item.nodeid: key for item in session.items if (key := key_of(item))}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Skip, with the reason, what cannot be judged; everything else takes its ordinary way."""
        key = self._keys.get(item.nodeid)
        if key is None:
            return None
        reason = key.scenario.missing() or self._broken.get((key.subject.name, key.check.domain))
        if reason is None:
            return None
        self._skip(item, reason)
        return True

    def _skip(self, item: pytest.Item, reason: str) -> None:
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        report = pytest.TestReport(
            nodeid=item.nodeid,
            location=item.location,
            keywords={},
            outcome="skipped",
            longrepr=(str(item.path), 0, f"Skipped: not-run: {reason}"),
            when="call",
            user_properties=[(NOT_RUN, reason)],
        )
        hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        """Before anyone else sees it: a violation is a failure, a missing capability a skip."""
        if report.nodeid in self._keys:
            self._translate(report)
            self._reports.setdefault(report.nodeid, []).append(report)
        return (yield)

    def _translate(self, report: pytest.TestReport) -> None:
        properties = _first(report.user_properties)
        if report.when == "call" and report.passed:
            if VIOLATION in properties:
                violation = properties[VIOLATION]
                report.outcome = "failed"
                report.longrepr = (
                    f"{violation['where']}: {violation['kind']}: {violation['message']}\n"
                    f"evidence: {properties.get(EVIDENCE, {})}\n"
                    f"requirement: {self._keys[report.nodeid].check.sentence}"
                )
            elif NOT_APPLICABLE in properties:
                report.outcome = "skipped"
                report.longrepr = (report.fspath, 0, f"Skipped: n/a: {properties[NOT_APPLICABLE]}")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        key = self._keys.get(nodeid)
        if key is None:
            return
        cell = judge(key, self._reports.pop(nodeid, []))
        if key.check.smoke and cell.verdict in {Verdict.FAIL, Verdict.ERROR}:
            self._broken[key.subject.name, key.check.domain] = (
                f"{key.check.id} did not pass, so the subject is judged no further ({cell.message})"
            )
        self._config.hook.pytest_harness_cell(cell=cell)


def judge(key: CellKey, reports: list[pytest.TestReport]) -> Cell:
    """The cell that the reports of one item add up to."""
    properties: dict[str, Any] = {}
    for report in reports:
        properties |= {k: v for k, v in _first(report.user_properties).items() if k not in properties}
    verdict, kind, message = _verdict(reports, properties)
    return Cell(
        check=key.check.id,
        subject=key.subject.name,
        scenario=key.scenario.id,
        verdict=verdict,
        kind=kind,
        message=message,
        evidence=dict(properties.get(EVIDENCE, {}))
        | ({"triggered": True} if TRIGGERED in properties else {}),
        seconds=round(sum(report.duration for report in reports), 3),
        reproduce=reproduce(key),
        detail="\n\n".join(_detail(report) for report in reports if report.failed),
    )


def reproduce(key: CellKey) -> str:
    """The command that runs this one cell."""
    device = getattr(key.scenario, "device", "cpu")
    command = ["harness", "check", key.subject.name, "--only", key.check.id, "--scenario", key.scenario.id]
    if device != "cpu":
        command += ["--device", device]
    return shlex.join(command)


def _verdict(
    reports: list[pytest.TestReport], properties: dict[str, Any]
) -> tuple[Verdict, Kind | None, str]:
    if VIOLATION in properties:
        violation = properties[VIOLATION]
        return Verdict.FAIL, Kind(violation["kind"]), violation["message"]
    for report in reports:
        if report.failed:
            return _unjudged_failure(report)
    for name, verdict in ((NOT_RUN, Verdict.NOT_RUN), (NOT_APPLICABLE, Verdict.NOT_APPLICABLE)):
        if name in properties:
            return verdict, None, str(properties[name])
    for report in reports:
        if report.skipped:
            return Verdict.NOT_RUN, None, _skip_reason(report)
    if any(report.when == "call" and report.passed for report in reports):
        return Verdict.PASS, None, ""
    return Verdict.ERROR, None, "the item ended without a report of its body"


def _unjudged_failure(report: pytest.TestReport) -> tuple[Verdict, Kind | None, str]:
    """A rank that died or stands still in the subject's code speaks against the subject; the rest is our error."""
    outcomes = getattr(report, "ranks", [])
    for outcome in outcomes:
        if outcome.status == "stuck" and _SUBJECT_FRAME in (outcome.stack or ""):
            return (
                Verdict.FAIL,
                Kind.HANG,
                f"rank {outcome.rank} did not end within its deadline: {outcome.detail}",
            )
        if outcome.status in {"died", "silent"}:
            return Verdict.FAIL, Kind.DIED, f"rank {outcome.rank} {outcome.detail}"
    text = report.longreprtext.strip().splitlines()
    return Verdict.ERROR, None, (text[-1] if text else "failed without a word")


def _skip_reason(report: pytest.TestReport) -> str:
    longrepr = report.longrepr
    reason = str(longrepr[2]) if isinstance(longrepr, tuple) else str(longrepr)
    return reason.removeprefix("Skipped: ").removeprefix("not-run: ")


def _first(properties: list[tuple[str, Any]]) -> dict[str, Any]:
    """One rank's word for all: properties of all ranks are concatenated in rank order, a rank's evidence last.

    The evidence is that of the first rank with a violation, else that of the first rank.
    """
    first: dict[str, Any] = {}
    for name, value in properties:
        if name == EVIDENCE and VIOLATION in first and not first.get("complete"):
            first |= {EVIDENCE: value, "complete": True}
        else:
            first.setdefault(name, value)
    return first


def _detail(report: pytest.TestReport) -> str:
    sections = [f"----- {title} -----\n{content}" for title, content in report.sections]
    return "\n".join([report.longreprtext, *sections])
