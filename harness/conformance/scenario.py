"""What a check runs on, and the small interface by which a domain offers its scenarios to the runner."""

from __future__ import annotations

import importlib
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from harness.conformance.check import DOMAINS
from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Scenario(Protocol):
    """A named set-up. Scenarios are frozen values: equal ids mean equal set-ups."""

    @property
    def id(self) -> str:
        """Readable and permanent, such as ``llama-dora-zero3x2-bf16``."""
        ...

    @property
    def ranks(self) -> int:
        """How many ranks the check's body runs on; 0 when it runs in the controller."""
        ...

    def missing(self) -> str | None:
        """Why this machine cannot run it, as a sentence; None when it can."""
        ...


class Domain(Protocol):
    """The module ``harness.conformance.<domain>.scenarios``."""

    def default(self, device: str) -> Sequence[Scenario]:
        """The set that a plain run takes."""
        ...

    def full(self, device: str) -> Sequence[Scenario]:
        """Every combination (``--full``); contains ``default``."""
        ...


def domain(name: str) -> Domain:
    """The scenarios module of one domain.

    Raises:
        UsageError: no such domain.
    """
    if name not in DOMAINS:
        raise UsageError(f"unknown domain {name!r}: expected one of {', '.join(DOMAINS)}")
    module: Domain = importlib.import_module(f"harness.conformance.{name}.scenarios")
    return module


def select(scenarios: Iterable[Scenario], globs: Sequence[str], worlds: Sequence[int] = ()) -> list[Scenario]:
    """Those whose id matches any of ``globs`` (all when empty) and whose world size is in ``worlds``."""
    return [
        scenario
        for scenario in scenarios
        if (not globs or any(fnmatchcase(scenario.id, glob) for glob in globs))
        and (not worlds or scenario.ranks in worlds)
    ]
