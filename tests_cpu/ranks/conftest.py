"""Runs a real pytest on a small suite of tests on ranks, and reads what it reported, exactly."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

RECORDER = """
    import json, os

    def pytest_runtest_logreport(report):
        line = {
            "id": report.nodeid, "when": report.when, "outcome": report.outcome,
            "text": report.longreprtext,
            "ranks": [r.as_data() for r in getattr(report, "ranks", [])], "duration": report.duration,
            "properties": report.user_properties, "sections": report.sections,
            "wasxfail": getattr(report, "wasxfail", None), "worker": os.environ.get("PYTEST_XDIST_WORKER", ""),
        }
        if not os.environ.get("PYTEST_XDIST_WORKER"):
            with open(os.environ["RECORD"], "a") as file:
                print(json.dumps(line, default=str), file=file)
"""
INI = """
    [pytest]
    ranks_preload = torch torch.distributed
    asyncio_default_fixture_loop_scope = function
    timeout = 60
"""


@dataclass
class Inner:
    """One finished session."""

    status: int
    stdout: str
    stderr: str
    seconds: float
    reports: list[dict[str, Any]]
    folder: Path
    orphans: list[str] = field(default_factory=list)

    def of(self, test: str, when: str | None = None) -> dict[str, Any]:
        """The report of a test's phase; without a phase, the first that did not pass, or the call's."""
        name = f"::{test}"
        mine = [one for one in self.reports if one["id"].endswith(name)]
        assert mine, (
            f"no report of {test} in {[one['id'] for one in self.reports]}\n{self.stdout}\n{self.stderr}"
        )
        if when is not None:
            return next(one for one in mine if one["when"] == when)
        telling = [one for one in mine if one["outcome"] != "passed"]
        return (telling or [one for one in mine if one["when"] == "call"])[0]

    def outcome(self, test: str) -> str:
        """passed, failed, skipped, xfailed, xpassed, or error for a failure outside the call."""
        one = self.of(test)
        if one["wasxfail"] is not None:
            return "xfailed" if one["outcome"] == "skipped" else "xpassed"
        return "error" if one["outcome"] == "failed" and one["when"] != "call" else one["outcome"]

    def statuses(self, test: str) -> list[str]:
        """Every rank's status in the report of ``of``."""
        return [one["status"] for one in self.of(test)["ranks"]]


@dataclass
class Started:
    """A session that runs."""

    process: subprocess.Popen[str]
    folder: Path
    marker: str
    began: float
    finished: list[Inner]
    """Where it is noted when it has ended."""

    def finish(self, timeout: float = 100, settle: float = 0) -> Inner:
        """Wait for its end; then up to ``settle`` seconds for its processes to be gone."""
        try:
            stdout, stderr = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGABRT)
            stdout, stderr = self.process.communicate()
            stderr += "\nTHE INNER SESSION HAD TO BE INTERRUPTED"
        seconds = time.monotonic() - self.began
        until = time.monotonic() + settle
        while (orphans := leftover(self.marker)) and time.monotonic() < until:
            time.sleep(0.05)  # they are nobody's children: their end cannot be waited for
        record = self.folder / "record.jsonl"
        lines = record.read_text().splitlines() if record.exists() else []
        reports = [json.loads(line) for line in lines]
        inner = Inner(self.process.returncode, stdout, stderr, seconds, reports, self.folder, orphans)
        self.finished.append(inner)
        return inner


def leftover(marker: str) -> list[str]:
    """Processes that still carry a session's marker in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("INNER_SESSION") == marker and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


Start = Callable[..., Started]
Run = Callable[..., Inner]

FINISHED = pytest.StashKey[list[Inner]]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails shows what the sessions said that it ran, or else the one that its fixture had run."""
    finished = item.config.stash.setdefault(FINISHED, [])
    if call.when == "setup":
        del finished[:-1]
    report = yield
    if report.failed:
        for one in finished:
            report.sections.append((f"session in {one.folder.name}", f"{one.stdout}\n{one.stderr}"))
    return report


@pytest.fixture(scope="session")
def start_session(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Start]:
    """Start an inner session: ``start(source, *args)``; more files as keywords, names without ``.py``."""
    started: list[Started] = []
    finished = pytestconfig.stash.setdefault(FINISHED, [])

    def start(
        source: str,
        *args: str,
        ini: str = "",
        env: dict[str, str] | None = None,
        folder: Path | None = None,
        command: Sequence[str] = (sys.executable, "-m", "pytest"),
        extra: dict[str, str] | None = None,
        **files: str,
    ) -> Started:
        folder = folder or tmp_path_factory.mktemp("inner")
        (folder / "record.jsonl").unlink(missing_ok=True)
        files = {"test_it": source, "conftest": RECORDER + files.pop("conftest", ""), **files}
        for name, text in files.items():
            (folder / f"{name}.py").write_text(textwrap.dedent(text))
        (folder / "pytest.ini").write_text(textwrap.dedent(INI) + textwrap.dedent(ini))
        for name, text in (extra or {}).items():
            (folder / name).write_text(text)
        marker = f"{folder.name}-{time.monotonic_ns()}"
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV"))
        }
        environ = {
            **inherited,
            "INNER_SESSION": marker,
            "RECORD": str(folder / "record.jsonl"),
            "OMP_NUM_THREADS": "1",
            **(env or {}),
        }
        process = subprocess.Popen(
            [*command, *args],
            cwd=folder,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(Started(process, folder, marker, time.monotonic(), finished))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.fixture(scope="session")
def run_session(start_session: Start) -> Run:
    """Run an inner session to its end."""

    def run(source: str, *args: str, timeout: float = 100, **options: Any) -> Inner:
        return start_session(source, *args, **options).finish(timeout)

    return run
