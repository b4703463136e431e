"""pytest hooks that make a check a test: one item per check, subject and scenario, judged in the controller.

On the ranks a check's body raises ``Violation`` once all of them have done their part. It travels back as data
beside a passing report, so that ranks in good order are kept for the next cell, and becomes the item's failure here.
A subject that raised by itself may have left its peers in a collective, so that is let through as the failure it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from harness.conformance.check import Check, check_of
from harness.conformance.verdict import NotApplicable, SubjectRaised, Violation

if TYPE_CHECKING:
    from collections.abc import Generator

    from harness.conformance.scenario import Scenario
    from harness.subjects import Subject

EVIDENCE = "harness.evidence"
VIOLATION = "harness.violation"
NOT_APPLICABLE = "harness.not-applicable"
NOT_RUN = "harness.not-run"
TRIGGERED = "harness.triggered"


@dataclass(frozen=True)
class CellKey:
    """What one item is about."""

    check: Check
    subject: Subject
    scenario: Scenario
    order: tuple[int, ...]

    @property
    def id(self) -> str:
        return f"{self.subject.name}-{self.scenario.id}"


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from harness.conformance import hooks

    pluginmanager.add_hookspecs(hooks)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "conformance checks (pytest --pyargs harness.conformance)")
    group.addoption(
        "--subject",
        action="append",
        default=[],
        metavar="NAME",
        help="implementation under test: a built-in name or package.module:callable; repeatable",
    )
    group.addoption(
        "--subject-checks",
        action="append",
        default=[],
        metavar="GLOB",
        help="run only checks whose id matches, such as 'sync/*'; repeatable",
    )
    group.addoption(
        "--subject-scenario",
        action="append",
        default=[],
        metavar="GLOB",
        help="run only scenarios whose id matches, such as '*dora*'; repeatable",
    )
    group.addoption(
        "--subject-world",
        action="append",
        default=[],
        type=int,
        metavar="N",
        help="run only scenarios of this world size; repeatable",
    )
    group.addoption("--subject-device", default="auto", help="cpu, cuda, or auto (cuda where torch sees one)")
    group.addoption(
        "--subject-cell",
        action="append",
        default=[],
        metavar="SUBJECT,CHECK,SCENARIO",
        help="run exactly this cell; repeatable, and then nothing else runs",
    )
    group.addoption("--subject-full", action="store_true", help="all scenarios instead of the default set")


@pytest.hookimpl(
    trylast=True
)  # registered last, called first: a cell that cannot be judged never reaches a rank
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "conformance: a check of harness.conformance")
    if not _on_rank(config):
        from harness.conformance.recorder import Recorder

        config.pluginmanager.register(Recorder(config), "harness-recorder")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    check = check_of(metafunc.function)
    if check is None:
        return
    from harness.conformance.plan import plan_of

    keys = plan_of(metafunc.config).keys(check)
    metafunc.parametrize(
        check.domain,
        [pytest.param(key, id=key.id, marks=_ranks(key.scenario)) for key in keys],
        indirect=True,
    )


def _ranks(scenario: Scenario) -> list[pytest.MarkDecorator]:
    """The marker of a check whose body runs on ranks; none for one that runs in the controller."""
    device = getattr(scenario, "device", "cpu")
    return [pytest.mark.ranks(scenario.ranks, device=device)] if scenario.ranks else []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Smoke first; then by scenario, so that each trainer is built once; then by subject and check.

    A check that the run has no cell for is deselected: pytest would call it skipped.
    """
    ours = [item for item in items if key_of(item)]
    idle = [item for item in items if check_of(getattr(item, "function", None)) and not key_of(item)]
    if idle:
        config.hook.pytest_deselected(items=idle)
    if ours or idle:
        others = [item for item in items if not key_of(item) and item not in idle]
        items[:] = others + sorted(ours, key=lambda item: key_of(item).order)  # type: ignore[union-attr]


def key_of(item: pytest.Item) -> CellKey | None:
    """The cell that an item is about; None for an ordinary test."""
    check = check_of(getattr(item, "function", None))
    if check is None:
        return None
    callspec = getattr(item, "callspec", None)
    key = callspec.params.get(check.domain) if callspec else None
    return key if isinstance(key, CellKey) else None


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Where a check's body runs (a rank, or the controller): its outcome becomes data on the report."""
    key = key_of(pyfuncitem)
    if key is None:
        return (yield)
    cell = pyfuncitem.funcargs[key.check.domain]
    properties = pyfuncitem.user_properties
    try:
        reason = key.subject.supports(key.check.domain, key.scenario)
        if reason is not None:
            properties.append((NOT_APPLICABLE, reason))
            pyfuncitem.obj = _nothing  # a wrapper must yield to the call that it wraps
        return (yield)
    except SubjectRaised as violation:
        properties.append((VIOLATION, _as_data(violation)))
        raise
    except Violation as violation:
        properties.append((VIOLATION, _as_data(violation)))
        return True
    except NotApplicable as reason:
        properties.append((NOT_APPLICABLE, str(reason)))
        return True
    finally:
        properties.append((EVIDENCE, getattr(cell, "evidence", {})))
        if getattr(getattr(cell, "subject", None), "triggered", False):
            properties.append((TRIGGERED, True))


def _nothing(**_: object) -> None:
    """The body of a check that does not apply."""


def _as_data(violation: Violation) -> dict[str, Any]:
    frame = violation.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    where = f"{frame.tb_frame.f_code.co_filename}:{frame.tb_lineno}" if frame else ""
    return {"kind": str(violation.kind), "message": violation.message, "where": where}


@pytest.fixture(scope="session")
def _stages() -> Generator[dict[str, Any]]:
    """The one stage that this rank keeps, by scenario id."""
    stages: dict[str, Any] = {}
    yield stages
    for stage in stages.values():
        stage.close()


@pytest.fixture
def sync(request: pytest.FixtureRequest, rank: Any, _stages: dict[str, Any]) -> Any:
    """The cell of a sync check, on this rank."""
    from harness.conformance.sync.stage import Stage, SyncCell

    key: CellKey = request.param
    stage = _stages.get(key.scenario.id)
    if stage is None or not stage.is_ready():
        while _stages:
            _stages.popitem()[1].close()
        stage = _stages[key.scenario.id] = Stage.build(key.scenario, rank.rank)  # type: ignore[arg-type]
    return SyncCell(stage, key.subject.load("sync"))


@pytest.fixture(scope="session")
def _ipc_stage(request: pytest.FixtureRequest) -> Generator[Any]:
    """What all IPC cells of this session share."""
    from harness.conformance.ipc.fixtures import Stage

    stage = Stage(limit=float(request.config.getoption("timeout", None) or request.config.getini("timeout")))
    yield stage
    stage.close()


@pytest.fixture
def ipc(request: pytest.FixtureRequest, _ipc_stage: Any) -> Any:
    """The cell of an IPC check, in the controller."""
    return _ipc_stage.cell(request)


@pytest.fixture(scope="session")
def _engine_stage(tmp_path_factory: pytest.TempPathFactory) -> Generator[Any]:
    """The one server and the one trainer that run."""
    from harness.conformance.engine.stage import Stage

    with Stage(tmp_path_factory.mktemp("engine")) as stage:
        yield stage


@pytest.fixture
def engine(request: pytest.FixtureRequest, _engine_stage: Any) -> Any:
    """The cell of an engine check, in the controller."""
    from harness.conformance.engine.stage import EngineCell

    key: CellKey = request.param
    return EngineCell(_engine_stage, key.scenario, key.subject.load("engine"))  # type: ignore[arg-type]


def _on_rank(config: pytest.Config) -> bool:
    """Whether this session is a rank of another one."""
    return "harness_rank" in getattr(config, "workerinput", {})
