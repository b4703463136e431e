"""Holds the bytes of a benchmark run to the committed baseline: a regression fails the session (exit status 1)."""

from pathlib import Path

import pytest

from harness.records import memory_baseline

BASELINE = Path(__file__).with_name("baseline.json")


def pytest_addoption(parser):
    parser.addoption(
        "--accept-bytes", metavar="WHY", help="make this run's bytes the baseline of this kind of machine"
    )


def _figures(config):
    session = getattr(config, "_benchmarksession", None)
    finished = session.benchmarks if session else []
    return memory_baseline.figures_of({each.fullname: each.extra_info for each in finished})


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    figures = _figures(session.config)
    why = session.config.getoption("--accept-bytes")
    if why is not None:
        memory_baseline.accept(BASELINE, figures, why)
    elif (
        memory_baseline.compare(figures, memory_baseline.read(BASELINE)).regressions
        and session.exitstatus == 0
    ):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter, config):
    figures = _figures(config)
    if not figures:
        return
    difference = memory_baseline.compare(figures, memory_baseline.read(BASELINE))
    terminalreporter.section("bytes against the baseline")
    for sentence in difference.regressions:
        terminalreporter.write_line(f"REGRESSION {sentence}", red=True)
    for sentence in difference.improvements:
        terminalreporter.write_line(f"improved   {sentence}: --accept-bytes 'why' keeps it")
    if not difference.regressions and not difference.improvements:
        count = sum(len(values) for sized in figures.values() for values in sized.values())
        terminalreporter.write_line(f"{count} figures within their tolerance of {BASELINE.name}")
