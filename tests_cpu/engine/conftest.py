"""One stage for the whole session: a server and a trainer at a time, ended with their children whatever happens."""

import statistics
from importlib.util import find_spec

import pytest

from harness.conformance.deepspeed_op import ensure_built
from harness.conformance.engine.stage import EngineCell, Stage


def pytest_configure(config):
    config.addinivalue_line("markers", "engine: needs vLLM; run by tox -e engine")


ORDER = (
    "test_engine_local",
    "test_engine_single",
    "test_engine_mutants",
    "test_engine_endurance",
    "test_engine_spread",
    "test_dp_server",
)
"""Engine by engine, so that each starts once. The local one is first: the fork server of a session is that of its
first pool, and this pool's has imported vLLM for all that come later."""
STAGE = pytest.StashKey()


def pytest_collection_modifyitems(items):
    engines = [item for item in items if item.get_closest_marker("engine")]
    places = [items.index(item) for item in engines]
    for place, item in zip(places, sorted(engines, key=lambda i: ORDER.index(i.path.stem)), strict=True):
        items[place] = item
    absent = find_spec("vllm") is None
    for item in items:
        if item.get_closest_marker("engine") and absent:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed: tox -e engine has it"))


@pytest.fixture(scope="session")
def stage(tmp_path_factory, pytestconfig):
    ensure_built()  # here, for no call to a rank has the time that a compiler takes
    with Stage(tmp_path_factory.mktemp("engine")) as made:
        pytestconfig.stash[STAGE] = made
        yield made


def pytest_terminal_summary(terminalreporter, config):
    stage = config.stash.get(STAGE, None)
    if stage is None:
        return
    terminalreporter.section("engines")
    for name, seconds in stage.starts:
        terminalreporter.write_line(f"{name} answered {seconds:.0f} s after its start")
    if taken := sorted(stage.transfers):
        middle, count = statistics.median(taken), len(taken)
        terminalreporter.write_line(f"{count} transfers, median {middle:.2f} s, fastest {taken[0]:.2f} s")


@pytest.fixture
def on_stage(stage):
    return lambda scenario: EngineCell(stage, scenario)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failure shows the end of the server's log."""
    report = yield
    made = getattr(item, "funcargs", {}).get("stage")
    if report.failed and made is not None and made.log is not None:
        report.sections.append((f"end of {made.log}", made.log_tail()))
    return report
