"""From every rank's answer, one pytest report.

It is a pass, a skip or an expected failure only where all ranks say so. A failure's body is the root cause:
the report of the first rank to fail by the clock that all processes of the machine share. A table of all
ranks and the others' own accounts follow it as sections of the same body, so ``--show-capture`` and junit XML
keep them.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

import pytest
from _pytest._code.code import ExceptionRepr, ReprExceptionInfo, ReprFileLocation, ReprTracebackNative

from harness.ranks.answer import Answer, root_of
from harness.ranks.collectives import missing_from

When = Literal["setup", "call", "teardown"]


def verdict(
    item: pytest.Item, when: When, answers: list[Answer], started: float, ended: float
) -> pytest.TestReport:
    """Merge the ranks' answers of one phase.

    Args:
        item: The item in the parent.
        when: The phase.
        answers: One per rank, in rank order; at least one.
        started: ``time.time()`` when the ranks were asked.
        ended: ``time.time()`` when the last of them had answered.
    """
    statuses = {answer.status for answer in answers}
    if any(answer.failed for answer in answers):
        report = _failure(item, when, answers)
    elif len(statuses) > 1:
        report = _disagreement(item, when, answers)
    else:
        report = _unanimous(item, when, answers)
    report.ranks = [answer.outcome() for answer in answers]  # type: ignore[attr-defined]
    report.start, report.stop = started, ended
    report.duration = report.stop - started
    return report


def complaint(
    item: pytest.Item, when: When, text: str, accounts: Iterable[tuple[str, str]] = ()
) -> pytest.TestReport:
    """A failure that is no rank's own: the ranks could not be started, or something about them was found out.

    Args:
        item: The item in the parent.
        when: The phase to report it in.
        text: The body; its first line is the headline.
        accounts: Sections, title and content.
    """
    body = _own_body(item, text)
    for title, content in accounts:
        body.addsection(title, content, "-")
    return _report(item, when, [], "failed", body)


def skip(item: pytest.Item, reason: str) -> pytest.TestReport:
    """The setup report of an item that cannot run here."""
    path, line, _ = item.location
    return _report(item, "setup", [], "skipped", (path, (line or 0) + 1, f"Skipped: {reason}"))


def _unanimous(item: pytest.Item, when: When, answers: list[Answer]) -> pytest.TestReport:
    first = answers[0].report
    if first is None:
        return _report(item, when, answers, "passed", None)
    longrepr: Any = first.longrepr
    reasons = list(dict.fromkeys(answer.detail for answer in answers))
    if answers[0].status == "skipped" and len(reasons) > 1 and isinstance(longrepr, tuple):
        told = "; ".join(f"rank {answer.rank}: {answer.detail}" for answer in answers)
        longrepr = (longrepr[0], longrepr[1], f"Skipped: {told}")
    report = _report(item, when, answers, first.outcome, longrepr)
    if hasattr(first, "wasxfail"):
        report.wasxfail = first.wasxfail
    return report


def _disagreement(item: pytest.Item, when: When, answers: list[Answer]) -> pytest.TestReport:
    told = ", ".join(f"rank {a.rank} {a.status}" + (f" ({a.detail})" if a.detail else "") for a in answers)
    text = f"the ranks disagree about {when}: {told}\nA test must end alike on all of its ranks."
    return _report(item, when, answers, "failed", _own_body(item, text))


def _failure(item: pytest.Item, when: When, answers: list[Answer]) -> pytest.TestReport:
    root = root_of(answers)
    if root.status == "collateral":  # nothing else failed: then it is a cause
        promoted = dataclasses.replace(root, status="raised")
        answers[answers.index(root)] = root = promoted
    longrepr: Any = root.report.longrepr if root.report is not None else None
    if not isinstance(longrepr, ExceptionRepr):
        longrepr = _own_body(item, str(longrepr) if longrepr is not None else root.text)
    if longrepr.reprcrash is not None and len(answers) > 1:
        longrepr.reprcrash.message = f"[rank {root.rank}] {longrepr.reprcrash.message}"
    others = [answer for answer in answers if answer is not root]
    if root.report is None:
        _add_account(longrepr, root, f"rank {root.rank}")
    if others:
        how = "failed first" if sum(answer.failed for answer in answers) > 1 else "failed"
        missing = missing_from({answer.rank: answer.collective for answer in answers if answer.recorded})
        table = "\n".join([*map(_line, answers), *filter(None, [missing])])
        longrepr.addsection(f"rank {root.rank} {how}, of {len(answers)} ranks", table, "=")
    for answer in others:
        _add_account(longrepr, answer, f"rank {answer.rank}, {answer.status}")
    return _report(item, when, answers, "failed", longrepr)


def _line(answer: Answer) -> str:
    first, *more = answer.detail.splitlines() or [""]
    return f"rank {answer.rank}  {answer.status:<10}  {first}{' …' if more else ''}".rstrip() + (
        f"\n{'':20}{answer.collective}" if answer.collective else ""
    )


def _add_account(longrepr: ExceptionRepr, answer: Answer, title: str) -> None:
    own = answer.report.longreprtext if answer.report is not None and answer.failed else answer.text
    if own and answer.failed and title != f"rank {answer.rank}":
        longrepr.addsection(title, own, "-")
    if answer.stack:
        longrepr.addsection(f"stacks of rank {answer.rank}", answer.stack.rstrip(), "-")
    if answer.output:
        longrepr.addsection(f"output of rank {answer.rank} before its end", answer.output.rstrip(), "-")


def _own_body(item: pytest.Item, text: str) -> ReprExceptionInfo:
    path, line, _ = item.location
    headline = text.strip().splitlines()[0] if text.strip() else "failed"
    crash = ReprFileLocation(path=path, lineno=(line or 0) + 1, message=headline)
    body = "".join(f"{part}\n" for part in text.splitlines())
    return ReprExceptionInfo(reprtraceback=ReprTracebackNative([body]), reprcrash=crash)


def _report(
    item: pytest.Item, when: When, answers: list[Answer], outcome: Any, longrepr: Any
) -> pytest.TestReport:
    reports = [answer.report for answer in answers if answer.report is not None]
    several = len(answers) > 1
    sections = [
        (f"{title} (rank {answer.rank})" if several else title, content)
        for answer in answers
        if answer.report is not None
        for title, content in answer.report.sections
    ]
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        sections=sections,
        user_properties=[pair for report in reports for pair in report.user_properties],
    )
