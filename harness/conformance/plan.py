"""Which cells a run has: subjects × checks × scenarios, validated before anything starts."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from harness.conformance.check import DOMAINS, Check, load_checks
from harness.conformance.plugin import CellKey
from harness.conformance.scenario import Scenario, domain, select
from harness.errors import UsageError
from harness.subjects import Subject, resolve
from harness.subjects.registry import domains

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pytest

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Plan:
    """The cells of one run, in the order in which they run."""

    cells: tuple[CellKey, ...]

    def keys(self, check: Check) -> list[CellKey]:
        """The cells of one check."""
        return [key for key in self.cells if key.check.id == check.id]

    @property
    def subjects(self) -> list[Subject]:
        return list(dict.fromkeys(key.subject for key in self.cells))


@dataclass(frozen=True)
class Request:
    """What the user asked for, as given.

    Attributes:
        subjects: names; at least one.
        checks: ids or globs; all checks when empty.
        scenarios: ids or globs; the default set when empty.
        worlds: world sizes; all when empty.
        device: ``auto``, ``cpu`` or ``cuda``.
        full: every scenario instead of the default set.
    """

    subjects: tuple[str, ...]
    checks: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    worlds: tuple[int, ...] = ()
    device: str = "auto"
    full: bool = False


def plan(request: Request) -> Plan:
    """The cells that ``request`` asks for.

    Raises:
        UsageError: a subject, check, scenario, world size or device that does not exist, with what was expected.
    """
    subjects = [resolve(name) for name in dict.fromkeys(request.subjects)]
    if not subjects:
        raise UsageError("name at least one subject: a built-in one or package.module:callable")
    checks = _checks(request.checks)
    device = _device(request.device)
    chosen = _domains(subjects, checks, asked=bool(request.checks))
    cells: list[CellKey] = []
    for name in chosen:
        scenarios = _scenarios(name, device, request)
        if not scenarios:
            continue
        offset = DOMAINS.index(name)
        wanted = [check for check in checks if check.domain == name]
        if any(not check.smoke for check in wanted):
            wanted = [
                c for c in load_checks().values() if c.domain == name and c.smoke and c not in wanted
            ] + wanted
        for subject_index, subject in enumerate(subjects):
            if name not in domains(subject):
                continue
            for check_index, check in enumerate(wanted):
                for scenario_index, scenario in enumerate(_of_check(check, scenarios)):
                    order = (
                        (offset, 0, scenario_index, subject_index)
                        if check.smoke
                        else (offset, 1, scenarios.index(scenario), subject_index, check_index)
                    )
                    cells.append(CellKey(check, subject, scenario, order))
    if not cells:
        raise UsageError(
            "nothing to run: no scenario matches"
            f" --scenario {' '.join(request.scenarios) or '(all)'}"
            f" --world {' '.join(map(str, request.worlds)) or '(all)'}; see `harness list scenarios`"
        )
    return Plan(tuple(sorted(cells, key=lambda key: key.order)))


def _of_check(check: Check, scenarios: list[Scenario]) -> list[Scenario]:
    if check.smoke:
        return scenarios[:1]
    return [s for s in scenarios if not check.scenarios or any(fnmatchcase(s.id, g) for g in check.scenarios)]


def _checks(globs: Sequence[str]) -> list[Check]:
    """Checks whose id or alias matches."""
    known = load_checks()
    if not globs:
        return list(known.values())
    chosen: dict[str, Check] = {}
    for glob in globs:
        found = [c for c in known.values() if any(fnmatchcase(name, glob) for name in (c.id, *c.aliases))]
        if not found:
            near = difflib.get_close_matches(glob, known, n=1)
            raise UsageError(
                f"unknown check {glob!r}: expected an id or a glob of ids such as 'sync/*'; see `harness list checks`"
                + (f". Did you mean {near[0]!r}?" if near else "")
            )
        chosen.update({c.id: c for c in found})
    return [c for c in known.values() if c.id in chosen]


def _domains(subjects: list[Subject], checks: list[Check], *, asked: bool) -> list[str]:
    """Domains to run: those named by the checks asked for, else those that every subject implements."""
    present = [name for name in DOMAINS if any(check.domain == name for check in checks)]
    shared = [name for name in present if all(name in domains(subject) for subject in subjects)]
    some = [name for name in present if any(name in domains(subject) for subject in subjects)]
    chosen = some if asked or not shared else shared
    if not chosen:
        raise UsageError(
            f"no check asked for is about {', '.join(s.name for s in subjects)}; see `harness list subjects`"
        )
    return chosen


def _scenarios(name: str, device: str, request: Request) -> list[Scenario]:
    offered = domain(name)
    pool = offered.full(device) if request.full or request.scenarios else offered.default(device)
    known = offered.full(device)
    for glob in request.scenarios:
        if not any(fnmatchcase(s.id, glob) for other in DOMAINS for s in _every(other, device)):
            near = difflib.get_close_matches(glob, [s.id for s in known], n=1)
            raise UsageError(
                f"unknown scenario {glob!r}: expected an id or a glob of ids such as '*dora*';"
                " see `harness list scenarios`" + (f". Did you mean {near[0]!r}?" if near else "")
            )
    return select(pool, request.scenarios, request.worlds)


def _every(name: str, device: str) -> Sequence[Scenario]:
    try:
        return domain(name).full(device)
    except ModuleNotFoundError:
        return ()


def _device(name: str) -> str:
    if name not in DEVICES:
        raise UsageError(f"unknown device {name!r}: expected one of {', '.join(DEVICES)}")
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


_plans: dict[Any, Plan] = {}


def request_of(config: pytest.Config) -> Request:
    """The request that pytest's options make; the reference when no subject is named."""
    option = config.option
    return Request(
        subjects=tuple(option.subject) or ("reference",),
        checks=tuple(option.subject_checks),
        scenarios=tuple(option.subject_scenario),
        worlds=tuple(option.subject_world),
        device=option.subject_device,
        full=option.subject_full,
    )


def plan_of(config: pytest.Config) -> Plan:
    """The plan of this pytest session, made once."""
    import pytest

    request = request_of(config)
    if request not in _plans:
        try:
            _plans[request] = plan(request)
        except UsageError as error:
            raise pytest.UsageError(str(error)) from None
    return _plans[request]
