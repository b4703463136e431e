"""What a visit to the zoo prints: mutants with who catches them, controls with who cries wolf."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from harness.conformance.verdict import Cell
    from harness.zoo.keeper import Sighting

STYLE = {"killed": "green", "survived": "bold red", "untriggered": "yellow", "error": "bold magenta"}


def board(sightings: Sequence[Sighting], flagged: Mapping[str, Sequence[Cell]]) -> RenderableType:
    """One table of mutants, one of controls, and the counts."""
    table = Table("mutant", "meant for", "outcome", "killed by", "public report", show_lines=False)
    for sighting in sightings:
        mutant = sighting.mutant
        others = [check for check in sighting.killed_by if check != mutant.intended]
        caught = [mutant.intended] if mutant.intended in sighting.killed_by else []
        table.add_row(
            mutant.id,
            mutant.intended,
            Text(sighting.outcome, style=STYLE[sighting.outcome]),
            ", ".join(caught + others) or "–",
            mutant.report or "–",
        )
    tame = Table("control", "outcome", "flagged by")
    for control, cells in flagged.items():
        outcome = Text("flagged", style="bold red") if cells else Text("passed", style="green")
        tame.add_row(control, outcome, ", ".join(f"{c.check} ({c.scenario}: {c.message})" for c in cells))
    killed = sum(sighting.outcome == "killed" for sighting in sightings)
    passed = sum(not cells for cells in flagged.values())
    counts = f"{killed} of {len(sightings)} mutants killed, {passed} of {len(flagged)} controls passed"
    return Group(table, tame, Text(counts))
