"""The scoreboard: rows are checks, columns are subjects, a cell says what holds and with what evidence."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from harness.conformance.check import Check, load_checks
from harness.conformance.verdict import Cell, Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

STYLE = {
    Verdict.PASS: "green",
    Verdict.FAIL: "bold red",
    Verdict.NOT_APPLICABLE: "dim",
    Verdict.NOT_RUN: "yellow",
    Verdict.ERROR: "bold magenta",
}


def scoreboard(cells: Sequence[Cell], environment: dict[str, Any]) -> RenderableType:
    """Everything that a person sees of a finished run."""
    return Group(_head(environment), _table(cells), *_failures(cells), *_counts(cells))


def _head(environment: dict[str, Any]) -> Text:
    versions = " · ".join(f"{name} {version}" for name, version in environment["versions"].items())
    return Text(
        f"harness {environment['suite']} · Python {environment['python']} · {environment['processors']}"
        f" processors · device {environment['device']}\n{versions}",
        style="dim",
    )


def _table(cells: Sequence[Cell]) -> Table:
    subjects = list(dict.fromkeys(cell.subject for cell in cells))
    table = Table(show_lines=True, pad_edge=False)
    table.add_column("check", no_wrap=True)
    for subject in subjects:
        table.add_column(subject, overflow="fold")
    for check in dict.fromkeys(cell.check for cell in cells):
        row = [
            _summary([c for c in cells if (c.check, c.subject) == (check, subject)]) for subject in subjects
        ]
        table.add_row(check, *row)
    return table


def _summary(cells: list[Cell]) -> Text:
    """One check against one subject, over all scenarios."""
    if not cells:
        return Text("–", style="dim")
    text = Text()
    verdicts = Counter(cell.verdict for cell in cells)
    for verdict in (Verdict.FAIL, Verdict.ERROR, Verdict.PASS, Verdict.NOT_APPLICABLE, Verdict.NOT_RUN):
        if count := verdicts[verdict]:
            text.append("  " * bool(text) + f"{verdict} {count}/{len(cells)}", style=STYLE[verdict])
    kinds = Counter(str(cell.kind) for cell in cells if cell.kind)
    if kinds:
        text.append(f"  {', '.join(kinds)}", style="red")
    note = _note(cells)
    if note:
        text.append(f"\n{note}")
    return text


def _note(cells: list[Cell]) -> str:
    """The figures behind a summary: those of the worst cell."""
    peaks = [c for c in cells if "peak_bytes" in c.evidence and "bound_bytes" in c.evidence]
    if peaks:
        worst = max(peaks, key=lambda c: float(c.evidence["peak_bytes"]) / float(c.evidence["bound_bytes"]))
        facts = worst.evidence
        note = (
            f"peak {_mib(facts['peak_bytes'])}, bound {_mib(facts['bound_bytes'])},"
            f" model {_mib(facts['model_bytes'])}"
        )
        if worst.verdict is Verdict.FAIL and facts.get("top"):
            site = facts["top"][0]["site"]
            note += f"\nheld by {site.rpartition('site-packages/')[0].rpartition('(')[0]}{_tail(site)}"
        return note
    failed = [c for c in cells if c.verdict in {Verdict.FAIL, Verdict.ERROR}]
    if failed:
        return _clip(max(failed, key=_ranks).message)
    idle = [c for c in cells if c.verdict in {Verdict.NOT_APPLICABLE, Verdict.NOT_RUN}]
    return _clip(idle[0].message) if idle else ""


def _ranks(cell: Cell) -> int:
    """Several ranks are the case that people have; a cell on more of them speaks first."""
    _, _, world = cell.scenario.partition("zero3x")
    return int(world.partition("-")[0] or 1)


def _tail(site: str) -> str:
    """``file:line`` from the package's own folder on."""
    path = site.rpartition("(")[2].rstrip(")")
    return path.rpartition("site-packages/")[2]


def _clip(message: str, limit: int = 160) -> str:
    first = message.strip().splitlines()[0] if message.strip() else ""
    return first if len(first) <= limit else f"{first[: limit - 1]}…"


def _failures(cells: Sequence[Cell]) -> list[RenderableType]:
    """One block per check and subject that does not hold: what, how to see it again, who met it before."""
    known = load_checks()
    blocks: list[RenderableType] = []
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.verdict in {Verdict.FAIL, Verdict.ERROR}:
            groups.setdefault((cell.subject, cell.check), []).append(cell)
    for (subject, check_id), failed in groups.items():
        cell = max(failed, key=_ranks)
        text = Text(f"{subject} · {check_id} · {cell.scenario}", style="bold")
        if len(failed) > 1:
            text.append(f" and {len(failed) - 1} more scenario(s)", style="dim")
        body = Text(f"{cell.kind or cell.verdict}: {_clip(cell.message, 400)}\n")
        body.append(f"{cell.reproduce}\n", style="cyan")
        body.append(_reports(known.get(check_id)), style="dim")
        blocks.append(Group(Text(), text, Padding(body, (0, 0, 0, 2))))
    return blocks


def _reports(check: Check | None) -> str:
    if check is None or not check.reports:
        return "public reports of this kind: none known"
    return f"public reports of this kind: {', '.join(check.reports)}"


def _counts(cells: Sequence[Cell]) -> list[RenderableType]:
    lines: list[RenderableType] = [Text()]
    for subject in dict.fromkeys(cell.subject for cell in cells):
        own = [cell for cell in cells if cell.subject == subject]
        verdicts = Counter(cell.verdict for cell in own)
        parts = [f"{verdicts[verdict]} {verdict}" for verdict in Verdict if verdicts[verdict]]
        lines.append(Text(f"{subject}: {', '.join(parts)} of {len(own)} cells"))
    return lines


def _mib(size: float) -> str:
    return f"{size / 2**20:.1f} MiB"
