"""One stage for the whole session: a server and a trainer at a time, ended with their children whatever happens."""

from importlib.util import find_spec

import pytest

from harness.conformance.engine.stage import EngineCell, Stage


def pytest_configure(config):
    config.addinivalue_line("markers", "engine: needs vLLM; run by tox -e engine")


def pytest_collection_modifyitems(items):
    absent = find_spec("vllm") is None
    for item in items:
        if item.get_closest_marker("engine") and absent:
            item.add_marker(pytest.mark.skip(reason="vLLM is not installed: tox -e engine has it"))


@pytest.fixture(scope="session")
def stage(tmp_path_factory):
    with Stage(tmp_path_factory.mktemp("engine")) as made:
        yield made


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
