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
        deadline: seconds that one cell may take.
        cells: exactly these (subject, check, scenario), whatever the other fields but ``device`` say.
    """

    subjects: tuple[str, ...]
    checks: tuple[str, ...] = ()
    scenarios: tuple[str, ...] = ()
    worlds: tuple[int, ...] = ()
    device: str = "auto"
    full: bool = False
    deadline: float = 60.0
    cells: tuple[tuple[str, str, str], ...] = ()


def plan(request: Request) -> Plan:
    """The cells that ``request`` asks for.

    Raises:
        UsageError: a subject, check, scenario, world size or device that does not exist, with what was expected.
    """
    if not request.deadline > 0:
        raise UsageError(f"a cell's deadline of {request.deadline} s: expected more than 0")
    if request.cells:
        return _exactly(request)
    subjects = [resolve(name) for name in dict.fromkeys(request.subjects)]
    if not subjects:
        raise UsageError("name at least one subject: a built-in one or package.module:callable")
    checks = _checks(request.checks)
    device = _device(request.device)
    cells: list[CellKey] = []
    for name in _domains(subjects, checks, asked=bool(request.checks)):
        scenarios = _scenarios(name, device, request)
        wanted = _with_smoke(name, [check for check in checks if check.domain == name])
        for subject in (each for each in subjects if name in domains(each)):
            cells += _cells(subject, subjects.index(subject), wanted, scenarios)
    if not cells:
        raise UsageError(
            "nothing to run: no scenario matches"
            f" --scenario {' '.join(request.scenarios) or '(all)'}"
            f" --world {' '.join(map(str, request.worlds)) or '(all)'}; see `harness list scenarios`"
        )
    return Plan(tuple(sorted(cells, key=lambda key: key.order)))


def _exactly(request: Request) -> Plan:
    """The cells that are named one by one."""
    device, known = _device(request.device), load_checks()
    subjects = list(dict.fromkeys(subject for subject, _, _ in request.cells))
    keys = []
    for subject, check_id, scenario_id in request.cells:
        (check,) = _checks([check_id])
        offered = {each.id: each for each in domain(check.domain).full(device)}
        if scenario_id not in offered:
            raise UsageError(f"unknown scenario {scenario_id!r}: see `harness list scenarios --full`")
        places = (list(offered).index(scenario_id), subjects.index(subject), list(known).index(check.id))
        order = (DOMAINS.index(check.domain), 0 if check.smoke else 1, *places)
        keys.append(CellKey(check, resolve(subject), offered[scenario_id], order))
    return Plan(tuple(sorted(keys, key=lambda key: key.order)))


def _with_smoke(name: str, checks: list[Check]) -> list[Check]:
    """No check is run on a subject that was not seen to start."""
    smoke = [c for c in load_checks().values() if c.domain == name and c.smoke and c not in checks]
    return smoke + checks


def _cells(subject: Subject, place: int, checks: list[Check], scenarios: list[Scenario]) -> list[CellKey]:
    """The cells of one subject in one domain: smoke on the first scenario, every check on each of its own."""
    keys = []
    for check_index, check in enumerate(checks):
        for scenario in _of_check(check, scenarios):
            within = (place,) if check.smoke else (scenarios.index(scenario), place, check_index)
            order = (DOMAINS.index(check.domain), 0 if check.smoke else 1, *within)
            keys.append(CellKey(check, subject, scenario, order))
    return keys


def _of_check(check: Check, scenarios: list[Scenario]) -> list[Scenario]:
    if check.smoke:
        return scenarios[:1]
    return [s for s in scenarios if check.is_about(s.id)]


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
        cells=tuple(_cell(text) for text in option.subject_cell),
    )


def _cell(text: str) -> tuple[str, str, str]:
    subject, check_id, scenario = (
        (part.strip() for part in text.split(",")) if text.count(",") == 2 else ("", "", "")
    )
    if not (subject and check_id and scenario):
        raise UsageError(f"--subject-cell {text!r}: expected subject,check,scenario")
    return subject, check_id, scenario


def plan_of(config: pytest.Config) -> Plan:
    """The plan of this pytest session, made once."""
    import pytest

    try:
        request = request_of(config)
        if request not in _plans:
            _plans[request] = plan(request)
    except UsageError as error:
        raise pytest.UsageError(str(error)) from None
    return _plans[request]
