"""Show every mutant to the checks and every control to all of them: who catches what, and who cries wolf."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.conformance.check import load_checks
from harness.conformance.plan import Request
from harness.conformance.run import run
from harness.conformance.verdict import Cell, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.zoo.mutant import Control, Mutant


@dataclass(frozen=True)
class Sighting:
    """What the checks made of one mutant.

    Attributes:
        outcome: ``killed``: the intended check failed it, in the expected way; ``survived``: it did not;
            ``untriggered``: its faulty code never ran; ``error``: a check of ours failed.
        killed_by: ids of every check that failed it.
    """

    mutant: Mutant
    outcome: str
    killed_by: tuple[str, ...]
    cells: tuple[Cell, ...]

    def as_data(self) -> dict[str, Any]:
        """The entry of a record's ``mutants``."""
        return {
            "id": self.mutant.id,
            "family": self.mutant.family,
            "report": self.mutant.report,
            "intended": self.mutant.intended,
            "triggered": any(_triggered(cell) for cell in self.cells),
            "killed_by": list(self.killed_by),
            "outcome": self.outcome,
        }


def watch(
    mutants: Sequence[Mutant],
    on_cell: Callable[[Cell], None],
    *,
    intended_only: bool = False,
) -> list[Sighting]:
    """Run each mutant in its scenario, against every check of its family or only the one meant for it."""
    asked: list[tuple[str, str, str]] = []
    for mutant in mutants:
        checks = [c.id for c in load_checks().values() if c.domain == mutant.family and not c.smoke]
        wanted = [mutant.intended] if intended_only else [*checks, mutant.intended]
        asked += [(mutant.target, check, mutant.scenario) for check in dict.fromkeys(wanted)]
    cells = run(Request((), cells=tuple(asked), device="cpu"), _ignore, on_cell)
    return [_sight(m, tuple(c for c in cells if c.subject == m.target)) for m in mutants]


def guard(
    controls: Sequence[Control],
    on_cell: Callable[[Cell], None],
    *,
    intended_only: bool = False,
) -> dict[str, list[Cell]]:
    """Run each control in its scenarios against every check of its family, or only those that it tempts.

    Returns:
        The cells that flag it, by the control's id.
    """
    asked = [
        (control.target, check.id, scenario)
        for control in controls
        for scenario in control.scenarios
        for check in load_checks().values()
        if check.domain == control.family and check.is_about(scenario)
        if not intended_only or check.smoke or check.id in control.tempts
    ]
    cells = run(Request((), cells=tuple(asked), device="cpu"), _ignore, on_cell)
    flagged = [c for c in cells if c.verdict not in {Verdict.PASS, Verdict.NOT_APPLICABLE}]
    return {control.id: [c for c in flagged if c.subject == control.target] for control in controls}


def _ignore(plan: object) -> None:
    """Nobody waits for the plan."""


def _sight(mutant: Mutant, cells: tuple[Cell, ...]) -> Sighting:
    killed_by = tuple(cell.check for cell in cells if cell.verdict is Verdict.FAIL)
    meant = [cell for cell in cells if cell.check == mutant.intended]
    if any(cell.verdict is Verdict.ERROR for cell in meant) or not meant:
        outcome = "error"
    elif any(cell.verdict is Verdict.FAIL and cell.kind == mutant.kind for cell in meant):
        outcome = "killed"
    elif not any(_triggered(cell) for cell in cells):
        outcome = "untriggered"
    else:
        outcome = "survived"
    return Sighting(mutant, outcome, killed_by, cells)


def _triggered(cell: Cell) -> bool:
    return bool(cell.evidence.get("triggered"))
