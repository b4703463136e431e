"""pytest hooks that run one item on several ranks; nothing heavy is imported, the work is elsewhere."""

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import UsageError
from harness.ranks import marker
from harness.ranks.attachment import attached, attached_rank
from harness.ranks.outcome import RankOutcome

if TYPE_CHECKING:
    from harness.ranks.rank import Rank


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ranks", "tests on ranks")
    group.addoption(
        "--ranks-fresh", action="store_true", help="run every test on ranks on new processes, reuse nothing"
    )
    group.addoption(
        "--ranks-compare",
        action="store_true",
        help="run every test on ranks on a reused pool and again on new processes; a different verdict fails",
    )
    group.addoption(
        "--ranks-audit",
        choices=("report", "fail"),
        default="report",
        help="what to do about processes, sockets, shared and device memory that a test leaves behind",
    )
    group.addoption(
        "--ranks-launcher",
        choices=("local", "ray"),
        default="local",
        help="where ranks live: on this machine, or in actors of a Ray cluster",
    )
    group.addoption(
        "--rank-pdb",
        type=int,
        metavar="N",
        help="enter the debugger at a failure on rank N, on this terminal",
    )
    parser.addini(
        "ranks_preload",
        "modules that the fork server of the ranks imports once; one that is not installed is left out",
        type="args",
        default=["torch", "torch.distributed"],
    )
    parser.addini(
        "ranks_timeout", "seconds for one item on ranks where pytest-timeout sets none", default="300"
    )
    parser.addini("ranks_grace", "seconds that the others have once one rank has failed", default="1")
    parser.addini("ranks_start_timeout", "seconds for a pool of ranks to start and collect", default="120")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", marker.DESCRIPTION)
    if "harness_rank" not in getattr(config, "workerinput", {}):
        from harness.ranks.controller import Controller

        config.pluginmanager.register(Controller(config), "harness-ranks")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    if not attached() or attached_rank() == 0 or config.option.collectonly:
        return None
    from harness.ranks.launch.attach import serve

    serve()
    return 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    try:
        marker.parametrize(metafunc)
    except UsageError as mistake:
        raise pytest.Collector.CollectError(str(mistake)) from None


@pytest.fixture(name=marker.PARAMETER)
def _ranks_spec(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="session")
def rank(request: pytest.FixtureRequest) -> "Rank":
    """This process of a test marked ``ranks(n)``: rank, world size, device, a store, a barrier."""
    from harness.ranks.session import RANK

    found = request.config.stash.get(RANK, None)
    if found is None:
        pytest.fail(
            "the fixture 'rank' exists on ranks only: mark the test with @pytest.mark.ranks(n)", pytrace=False
        )
    return found


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(report: Any) -> Generator[None, Any, Any]:
    data = yield
    if data is not None and getattr(report, "ranks", None):
        data["ranks"] = [outcome.as_data() for outcome in report.ranks]
    return data


@pytest.hookimpl(wrapper=True)
def pytest_report_from_serializable() -> Generator[None, Any, Any]:
    report = yield
    if report is not None and getattr(report, "ranks", None):
        report.ranks = [RankOutcome.from_data(outcome) for outcome in report.ranks]
    return report
