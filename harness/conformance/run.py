"""Run checks through pytest, in this process, with none of its output: the cells are the output."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from harness.conformance.plan import Plan, Request, plan
from harness.conformance.verdict import Cell, Verdict
from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HEAVY = ("torch", "transformers", "peft", "deepspeed", "harness.conformance.preload")


@dataclass(eq=False)  # pytest keeps plugins in sets
class _Listener:
    """The plugin that hears of cells."""

    on_cell: Callable[[Cell], None]
    cells: list[Cell] = field(default_factory=list)
    trouble: list[str] = field(default_factory=list)

    def pytest_harness_cell(self, cell: Cell) -> None:
        self.cells.append(cell)
        self.on_cell(cell)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.trouble.append(report.longreprtext)

    def pytest_internalerror(self, excrepr: object) -> None:
        self.trouble.append(str(excrepr))


def run(request: Request, on_plan: Callable[[Plan], None], on_cell: Callable[[Cell], None]) -> list[Cell]:
    """Run the cells that ``request`` asks for; every cell is there in the end, whatever happened.

    Args:
        request: what the user asked for.
        on_plan: called once, before anything starts.
        on_cell: called as each cell ends.

    Raises:
        UsageError: the request names something that does not exist.
        HarnessError: pytest itself failed before the cells were done: our own error.
    """
    planned = plan(request)
    on_plan(planned)
    _prepare(planned)
    listener = _Listener(on_cell)
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        status = pytest.main(_arguments(request), plugins=[listener])
    if status == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    done = {(cell.check, cell.subject, cell.scenario) for cell in listener.cells}
    left = [k for k in planned.cells if (k.check.id, k.subject.name, k.scenario.id) not in done]
    if listener.trouble or left:
        reason = "\n".join(listener.trouble) or output.getvalue().strip() or f"pytest ended with {status!r}"
        raise HarnessError(f"{len(left)} of {len(planned.cells)} cells never ran. pytest said:\n{reason}")
    return listener.cells


def _arguments(request: Request) -> list[str]:
    folder = resources.files("harness.conformance")
    arguments = [
        "--pyargs",
        "harness.conformance",
        "-c",
        str(folder / "pytest.ini"),
        "--rootdir",
        str(folder),
    ]
    arguments += ["-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:benchmark"]
    arguments += ["-o", f"ranks_preload={' '.join(HEAVY)}"]
    arguments.append(f"--timeout={request.deadline}")
    for option, values in (
        ("--subject", request.subjects),
        ("--subject-checks", request.checks),
        ("--subject-scenario", request.scenarios),
        ("--subject-world", request.worlds),
    ):
        for value in values:
            arguments += [f"{option}={value}"]
    arguments += [f"--subject-cell={','.join(cell)}" for cell in request.cells]
    arguments.append(f"--subject-device={request.device}")
    if request.full:
        arguments.append("--subject-full")
    return arguments


def _prepare(planned: Plan) -> None:
    """What must be so before a heavy library is imported, here and in every rank."""
    cuda = any(getattr(key.scenario, "device", "cpu") == "cuda" for key in planned.cells)
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if cuda else "cpu")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if any(
        getattr(key.scenario, "sharding", "").startswith("zero3") and key.scenario.missing() is None
        for key in planned.cells
    ):
        from harness.conformance.deepspeed_op import ensure_built

        ensure_built()


def exit_status(cells: Sequence[Cell]) -> int:
    """0: all hold; 1: some do not; 3: our own error. A run that judged nothing is never a success."""
    verdicts = {cell.verdict for cell in cells}
    if Verdict.ERROR in verdicts:
        return 3
    if Verdict.FAIL in verdicts:
        return 1
    return 0 if any(cell.exercised for cell in cells) else 1
