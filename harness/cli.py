"""The command ``harness``: reads arguments, calls the package that does the work, prints, and sets the exit status.

Exit status: 0 all hold, 1 some do not, 2 usage, 3 our own error.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - typer reads annotations at run time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness import __version__
from harness.arguments import whole_numbers, writable
from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.conformance.plan import Plan
    from harness.conformance.verdict import Cell

HOLD, DO_NOT_HOLD, USAGE, OUR_ERROR, INTERRUPTED = 0, 1, 2, 3, 130

app = typer.Typer(
    name="harness",
    help="Proves that a trainer's weights reach the inference engine right, and that its workers fail well.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: importing rich for it would take half of the time that --help may take
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Listing(StrEnum):
    """What ``harness list`` can list."""

    checks = "checks"
    subjects = "subjects"
    scenarios = "scenarios"


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"harness {__version__}")
        raise typer.Exit


@app.callback()
def top(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Options of the command itself."""


@app.command()
def check(
    subjects: Annotated[
        list[str], typer.Argument(help="Built-in names, or your own as package.module:callable.")
    ],
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Check ids or globs, such as 'sync/*'.")
    ] = None,
    scenario: Annotated[
        list[str] | None, typer.Option("--scenario", help="Scenario ids or globs, out of all of them.")
    ] = None,
    world: Annotated[str, typer.Option("--world", help="World sizes, such as 1,2.")] = "",
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto.")] = "auto",
    full: Annotated[bool, typer.Option("--full", help="Every scenario instead of the default set.")] = False,
    deadline: Annotated[float, typer.Option("--deadline", help="Seconds that one cell may take.")] = 60.0,
    expect: Annotated[
        Path | None, typer.Option("--expect", help="Baseline of known failures (TOML).")
    ] = None,
    write_baseline: Annotated[
        Path | None, typer.Option("--write-baseline", help="Write this run's failures as a first baseline.")
    ] = None,
    json: Annotated[Path | None, typer.Option("--json", help="Write the record of the run.")] = None,
) -> None:
    """Run the checks against one or more implementations and print the scoreboard."""
    from harness.conformance.plan import Request
    from harness.conformance.run import run

    request = Request(
        subjects=tuple(subjects),
        checks=tuple(only or ()),
        scenarios=tuple(scenario or ()),
        worlds=whole_numbers("--world", world, "world size"),
        device=device,
        full=full,
        deadline=deadline,
    )
    known = None
    if expect is not None:
        from harness.conformance import baseline

        known = baseline.read(expect)
    writable(json)
    writable(write_baseline)
    with _progress() as (on_plan, on_cell):
        cells = run(request, on_plan, on_cell)
    raise typer.Exit(_conclude(cells, request.device, known, write_baseline, json))


@contextmanager
def _progress() -> Iterator[tuple[Callable[[Plan], None], Callable[[Cell], None]]]:
    """A progress display on standard error; what to call with the plan, and with each cell."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    columns = (
        SpinnerColumn(),
        MofNCompleteColumn(),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=_console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting (DeepSpeed's op is compiled once, in about a minute)", total=None)

        def on_plan(plan: Plan) -> None:
            progress.update(task, total=len(plan.cells))

        def on_cell(cell: Cell) -> None:
            text = f"{cell.subject} {cell.check} {cell.scenario}: {cell.verdict}"
            progress.update(task, advance=1, description=text)

        yield on_plan, on_cell


def _conclude(
    cells: list[Cell], device: str, known: Any, write_baseline: Path | None, json: Path | None
) -> int:
    """Print and write everything; the exit status."""
    from harness.conformance import baseline, record
    from harness.conformance.environment import environment
    from harness.conformance.run import exit_status
    from harness.conformance.scoreboard import scoreboard

    facts = environment(device)
    console = _console()
    console.print(scoreboard(cells, facts))
    if json is not None:
        record.write(json, record.record(cells, facts))
    if write_baseline is not None:
        write_baseline.write_text(baseline.first(cells))
    status = exit_status(cells)
    if known is None or status == OUR_ERROR:
        return status
    surprises = baseline.compare(cells, known)
    for surprise in surprises:
        console.print(f"baseline: {surprise}", style="bold red", highlight=False)
    if not any(cell.exercised for cell in cells):
        return DO_NOT_HOLD
    return DO_NOT_HOLD if surprises else HOLD


@app.command()
def zoo(
    family: Annotated[str, typer.Option("--family", help="Only mutants and controls of sync or ipc.")] = "",
    intended: Annotated[
        bool,
        typer.Option(
            "--intended",
            help="Only the check that each mutant is meant for, and those that each control tempts: faster.",
        ),
    ] = False,
    json: Annotated[Path | None, typer.Option("--json", help="Write the record of the visit.")] = None,
) -> None:
    """Show every check the mutants that it must fail and the controls that it must pass."""
    from harness.conformance import record
    from harness.conformance.environment import environment
    from harness.zoo import controls, keeper, mutants
    from harness.zoo.board import board
    from harness.zoo.mutant import FAMILIES

    if family not in {"", *FAMILIES}:
        raise UsageError(f"unknown family {family!r}: expected one of {', '.join(FAMILIES)}")
    writable(json)
    with _progress() as (_, on_cell):
        sightings = keeper.watch(mutants(family), on_cell, intended_only=intended)
        flagged = keeper.guard(controls(family), on_cell, intended_only=intended)
    _console().print(board(sightings, flagged))
    if json is not None:
        document = record.record([cell for s in sightings for cell in s.cells], environment("cpu"))
        document["mutants"] = [sighting.as_data() for sighting in sightings]
        document["controls"] = [
            {"id": name, "outcome": "flagged" if cells else "passed"} for name, cells in flagged.items()
        ]
        record.write(json, document)
    if any(sighting.outcome == "error" for sighting in sightings):
        raise typer.Exit(OUR_ERROR)
    tame = all(sighting.outcome == "killed" for sighting in sightings) and not any(flagged.values())
    raise typer.Exit(HOLD if tame else DO_NOT_HOLD)


@app.command(name="list")
def list_(
    what: Annotated[Listing, typer.Argument(help="What to list.")],
    full: Annotated[bool, typer.Option("--full", help="Scenarios beyond the default set too.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Checks as the text of docs/spec.md.")] = False,
) -> None:
    """List checks, subjects or scenarios."""
    from harness import listing

    if markdown:
        from harness.conformance.spec import markdown as spec

        if what is not Listing.checks:
            raise UsageError("--markdown is for checks: harness list checks --markdown")
        typer.echo(spec(), nl=False)
        return
    match what:
        case Listing.checks:
            table = listing.checks()
        case Listing.subjects:
            table = listing.subjects()
        case Listing.scenarios:
            table = listing.scenarios(full=full)
    _console().print(table)


@app.command()
def law(
    config: Annotated[
        list[Path] | None,
        typer.Argument(help="Your models' config.json; without one, Llama 3.1 8B, 70B and 405B."),
    ] = None,
    world: Annotated[str, typer.Option("--world", help="World sizes.")] = "2,8,64,256",
    dtype: Annotated[str, typer.Option("--dtype", help="Of base and adapter: bf16, fp16 or fp32.")] = "bf16",
    rank: Annotated[int, typer.Option("--rank", help="Rank of the LoRA on all linear layers.")] = 16,
    card: Annotated[str, typer.Option("--card", help="Memory of the cards to compare with, GB.")] = "80,141",
    json: Annotated[Path | None, typer.Option("--json", help="Write the figures, in bytes.")] = None,
) -> None:
    """Compute what a sync takes on each GPU at real shapes, with nothing allocated."""
    from harness.conformance.record import write
    from harness.law import Request, read, rows, standard
    from harness.law.table import document, table

    models = [read(path) for path in config] if config else standard()
    request = Request(
        models,
        whole_numbers("--world", world, "world size"),
        dtype,
        rank,
        whole_numbers("--card", card, "card of some GB"),
    )
    writable(json)
    with _console(stderr=True).status("starting") as status:
        found = rows(request, lambda model: status.update(f"{model.name}: minutes for a large one"))
    _console().print(table(request, found))
    if json is not None:
        write(json, document(request, found))


@app.command()
def doctor() -> None:
    """Say what this machine can run, and why not the rest."""
    from rich.table import Table
    from rich.text import Text

    from harness.doctor import examine

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in examine():
        mark = Text("yes", style="green") if finding.works else Text("no", style="yellow")
        remedy = "" if finding.works else finding.remedy
        table.add_row(mark, Text(finding.what), Text(finding.found), Text(remedy))
    _console().print(table)


def _console(*, stderr: bool = False) -> Any:
    """A console as wide as its terminal, and wide enough for a table when it is no terminal."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, width=None if stream.isatty() else 140, soft_wrap=False)


def main() -> None:
    """Run the command; errors become one sentence and an exit status, never a traceback of ours."""
    try:
        app(standalone_mode=True)
    except UsageError as error:
        _complain(error, USAGE)
    except HarnessError as error:
        _complain(error, OUR_ERROR)
    except KeyboardInterrupt:
        _complain("interrupted", INTERRUPTED)


def _complain(message: object, status: int) -> None:
    typer.echo(f"harness: {message}", err=True)
    raise SystemExit(status)
