"""What the zoo holds: mutants, with the check that must fail each, and controls, which every check must pass."""

from __future__ import annotations

import functools
import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.verdict import Kind

FAMILIES = ("sync", "ipc")
Run = TypeVar("Run", bound="Callable[..., Any]")

_mutants: list[Mutant] = []
_controls: list[Control] = []


@dataclass(frozen=True)
class Mutant:
    """A subject with one known bug.

    Attributes:
        id: ``family/name``.
        report: the public report in which people met the bug; empty for none known.
        intended: the check that must fail it.
        kind: how that check must fail it.
        scenario: where the bug shows.
        target: how it is named as a subject.
    """

    id: str
    report: str
    intended: str
    kind: Kind
    scenario: str
    target: str

    @property
    def family(self) -> str:
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class Control:
    """A correct but unusual subject; a check that fails it is too strict.

    Attributes:
        id: ``family/name``.
        why: what is unusual about it.
        target: how it is named as a subject.
        scenarios: where it must pass every check.
        tempts: the checks that could take it for wrong, being what it is; the likely ones to be too strict.
    """

    id: str
    why: str
    target: str
    scenarios: tuple[str, ...]
    tempts: tuple[str, ...]

    @property
    def family(self) -> str:
        return self.id.partition("/")[0]


def mutant(*, intended: str, kind: Kind, scenario: str, report: str = "") -> Callable[[Run], Run]:
    """Declare the decorated subject to be a mutant.

    The subject carries ``triggered``, which becomes true once its faulty code has run in a process: a function's
    when it is called; a class sets its own.
    """

    def declare(run: Run) -> Run:
        name = _name(run)
        _mutants.append(Mutant(name, report, intended, kind, scenario, f"{run.__module__}:{run.__name__}"))
        return run if inspect.isclass(run) else _noting(run)

    return declare


def _noting(run: Run) -> Run:
    @functools.wraps(run)
    def noted(*given: Any) -> Any:
        noted.triggered = True  # type: ignore[attr-defined]
        return run(*given)

    noted.triggered = False  # type: ignore[attr-defined]
    return noted  # type: ignore[return-value]


def offers(mutated: Callable[..., Any], name: str) -> Callable[[Run], Run]:
    """Declare the decorated function to be the faulty part of a mutant, which offers it as an attribute."""

    def declare(run: Run) -> Run:
        @functools.wraps(run)
        def noted(*given: Any) -> Any:
            mutated.triggered = True  # type: ignore[attr-defined]
            return run(*given)

        setattr(mutated, name, noted)
        return noted  # type: ignore[return-value]

    return declare


def control(*, scenarios: tuple[str, ...], tempts: tuple[str, ...]) -> Callable[[Run], Run]:
    """Declare the decorated subject to be a control; its docstring says what is unusual about it."""

    def declare(run: Run) -> Run:
        why = (run.__doc__ or "").strip()
        _controls.append(Control(_name(run), why, f"{run.__module__}:{run.__name__}", scenarios, tempts))
        return run

    return declare


def _name(run: Callable[..., Any]) -> str:
    """``family/name-in-small-letters``; a family may fill several modules, ``ipc`` and ``ipc_lives``."""
    family = run.__module__.rpartition(".")[2].partition("_")[0]
    words = re.sub(r"(?<!^)(?=[A-Z])", "-", run.__name__).replace("_", "-")
    return f"{family}/{words.lower()}"


def mutants(family: str = "") -> list[Mutant]:
    """Every mutant, or those of one family."""
    _load()
    return [mutant for mutant in _mutants if family in {"", mutant.family}]


def controls(family: str = "") -> list[Control]:
    """Every control, or those of one family."""
    _load()
    return [control for control in _controls if family in {"", control.family}]


def _load() -> None:
    """Import every module of a family, so that what it declares is known."""
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if module.name.partition("_")[0] in FAMILIES:
            importlib.import_module(f"harness.zoo.{module.name}")
