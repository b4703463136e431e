"""A check: one requirement with a permanent id, declared beside the code that tests it.

The declaration is the single source for the scoreboard, ``harness list checks`` and ``docs/spec.md``.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Literal, TypeVar

from harness.errors import HarnessError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Function = TypeVar("Function", bound="Callable[..., object]")
ATTRIBUTE = "harness_check"
DOMAINS = ("sync", "ipc", "engine")

_by_id: dict[str, Check] = {}


@dataclass(frozen=True)
class Check:
    """One requirement.

    Attributes:
        id: permanent, ``domain/name``; a renamed check keeps its old id in ``aliases``.
        level: ``MUST`` or ``SHOULD``, as in RFC 2119.
        sentence: the normative sentence; whatever it permits passes.
        since: suite version in which the check appeared.
        reports: public reports of faults that it would have caught.
        smoke: the first stage: a subject that fails it is a broken adapter and is judged no further.
        scenarios: ids or globs of the scenarios that the check applies to; empty for all of its domain.
    """

    id: str
    level: Literal["MUST", "SHOULD"]
    sentence: str
    since: str
    reports: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    smoke: bool = False
    scenarios: tuple[str, ...] = ()

    @property
    def domain(self) -> str:
        """The part of the id before the slash: ``sync``, ``ipc`` or ``engine``."""
        return self.id.partition("/")[0]

    @property
    def name(self) -> str:
        """The part of the id after the slash."""
        return self.id.partition("/")[2]

    def is_about(self, scenario: str) -> bool:
        """Whether the check applies to the scenario of this id."""
        return not self.scenarios or any(fnmatchcase(scenario, glob) for glob in self.scenarios)


def check(
    id: str,  # noqa: A002 - what it is called everywhere else
    *,
    must: str | None = None,
    should: str | None = None,
    since: str,
    reports: Iterable[str] = (),
    aliases: Iterable[str] = (),
    smoke: bool = False,
    scenarios: Iterable[str] = (),
) -> Callable[[Function], Function]:
    """Declare the decorated pytest function to be a check. Exactly one of ``must`` and ``should`` is given."""
    if (must is None) == (should is None):
        raise HarnessError(f"check {id!r}: give exactly one of must= and should=")
    declared = Check(
        id=id,
        level="MUST" if must is not None else "SHOULD",
        sentence=must or should or "",
        since=since,
        reports=tuple(reports),
        aliases=tuple(aliases),
        smoke=smoke,
        scenarios=tuple(scenarios),
    )

    def declare(function: Function) -> Function:
        previous = _by_id.setdefault(id, declared)
        if previous != declared:
            raise HarnessError(f"check {id!r} is declared twice, with different words")
        setattr(function, ATTRIBUTE, declared)
        return function

    return declare


def check_of(function: object) -> Check | None:
    """The check that ``function`` was declared to be, if any."""
    return getattr(function, ATTRIBUTE, None)


def load_checks() -> dict[str, Check]:
    """Import the check modules of every domain; all checks by id, in the order in which a person reads them."""
    found: dict[str, Check] = {}
    for domain in DOMAINS:
        package = importlib.import_module(f"harness.conformance.{domain}")
        for name in getattr(package, "CHECK_MODULES", ()):
            module = importlib.import_module(f"{package.__name__}.{name}")
            own = (
                each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__
            )
            found |= {declared.id: declared for each in own if (declared := check_of(each))}
    return found
