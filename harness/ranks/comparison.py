"""Does a verdict depend on what ran before? Each test on a reused pool, and again on new processes."""

import pytest

from harness.ranks.verdict import complaint


def summary(reports: list[pytest.TestReport]) -> str:
    """How one run ended, in a few words: the first phase that did not pass, or "passed"."""
    for report in reports:
        if hasattr(report, "wasxfail"):
            return f"{'xfailed' if report.skipped else 'xpassed'} in {report.when}"
        if not report.passed:
            return f"{report.outcome} in {report.when}"
    return "passed"


def differ(
    item: pytest.Item, reused: list[pytest.TestReport], fresh: list[pytest.TestReport]
) -> pytest.TestReport | None:
    """The failure to report when the two runs of an item ended differently; None when they agree."""
    on_reused, on_fresh = summary(reused), summary(fresh)
    if on_reused == on_fresh:
        return None
    text = (
        f"the verdict depends on what ran on the pool before: on a reused pool {on_reused}, "
        f"on new processes {on_fresh}"
    )
    accounts = [
        (f"{name}, {report.when}", report.longreprtext)
        for name, reports in (("reused pool", reused), ("new processes", fresh))
        for report in reports
        if not report.passed and report.longreprtext
    ]
    return complaint(item, "call", text, accounts)
