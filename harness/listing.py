"""The tables of ``harness list``."""

from __future__ import annotations

from rich.table import Table

from harness.conformance.check import DOMAINS, load_checks
from harness.conformance.scenario import domain
from harness.subjects.registry import builtin


def checks() -> Table:
    """Every check: id, level, sentence, since, public reports."""
    table = Table("check", "level", "requirement", "since", "public reports", show_lines=True)
    for each in load_checks().values():
        table.add_row(each.id, each.level, each.sentence, each.since, ", ".join(each.reports))
    return table


def subjects() -> Table:
    """The built-in subjects, and how to name one's own."""
    table = Table("subject", "domains", "what it is")
    for each in builtin():
        table.add_row(each.name, ", ".join(each.targets), each.summary)
    table.add_row("package.module:callable", "sync or ipc", "your own (see CONTRIBUTING.md)")
    return table


def scenarios(*, full: bool) -> Table:
    """The scenarios that a plain run takes, or all of them."""
    table = Table("domain", "scenario", "ranks", "default")
    for name in DOMAINS:
        try:
            offered = domain(name)
        except ModuleNotFoundError:
            continue
        chosen = {each.id for each in offered.default("cpu")}
        for each in offered.full("cpu"):
            if full or each.id in chosen:
                table.add_row(name, each.id, str(each.ranks or "–"), "yes" if each.id in chosen else "")
    return table
