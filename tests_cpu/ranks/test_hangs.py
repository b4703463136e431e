"""A rank that hangs costs seconds, not the session: it is questioned, ended with its children, replaced."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest

from harness.ranks.deadline import deadline_of
from harness.ranks.folder import SessionFolder

pytestmark = pytest.mark.timeout(300)

KILLED = """
import os, signal
from harness.ranks.folder import SessionFolder
(SessionFolder().path / "1").mkdir()
os.kill(os.getpid(), signal.SIGKILL)
"""
MANY = """
from harness.ranks.folder import SessionFolder
for _ in range(200):
    folder = SessionFolder()
    (folder.path / "1").mkdir()
    folder.close()
"""
SUITE = """
    import os, signal, subprocess, sys
    from pathlib import Path
    import pytest, torch
    import torch.distributed as dist

    pytestmark = pytest.mark.ranks(2)

    @pytest.mark.timeout(2)
    def test_a_rank_never_joins(rank):
        if rank.rank == 1:
            dist.all_reduce(torch.ones(7))

    @pytest.mark.timeout(2)
    def test_two_different_collectives(rank):
        if rank.rank == 1:
            dist.all_reduce(torch.ones(7))
        else:
            dist.broadcast(torch.ones(5), src=1)
            dist.barrier()

    @pytest.mark.timeout(2)
    def test_a_rank_is_stopped(rank):
        if rank.rank == 0:
            os.kill(os.getpid(), signal.SIGSTOP)

    @pytest.mark.timeout(2)
    def test_a_rank_loops_for_ever(rank):
        while rank.rank == 0:
            pass

    @pytest.mark.timeout(2)
    def test_children_of_a_stuck_rank(rank):
        if rank.rank == 0:
            subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"])

    @pytest.mark.timeout(2)
    def test_ignores_sigterm(rank):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank.rank == 0:
            dist.barrier()

    @pytest.fixture
    def collective_in_teardown(rank):
        yield
        dist.barrier()

    def test_teardown_with_a_collective_after_a_failure_on_one_rank(rank, collective_in_teardown):
        assert rank.rank == 0

    @pytest.fixture
    def outside(rank):
        file = Path(os.environ["RECORD"]).parent / f"outside{rank.rank}"
        file.touch()
        yield
        file.unlink()

    def test_teardown_of_survivors(rank, outside):
        if rank.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    def test_teardown_with_a_collective_after_a_mixed_hang(rank, collective_in_teardown):
        assert rank.rank == 0
        dist.all_reduce(torch.ones(3))

    @pytest.fixture
    def one_sided_teardown(rank):
        yield
        if rank.rank == 0:
            dist.barrier()

    def test_a_teardown_that_hangs(rank, one_sided_teardown):
        assert rank.rank == 0

    @pytest.fixture
    def one_sided_setup(rank):
        if rank.rank == 0:
            dist.barrier()
        else:
            raise OSError("no room")

    def test_a_setup_that_hangs_because_another_failed(rank, one_sided_setup):
        pass

    def test_the_session_goes_on(rank):
        dist.barrier()
"""
ENDLESS = """
    import os, sys
    import pytest
    import torch.distributed as dist

    @pytest.mark.ranks(2)
    def test_endless(rank):
        if rank.rank == 0:
            print("out of", rank.rank, flush=True)
            print("err of", rank.rank, file=sys.stderr, flush=True)
            os.write(1, b"native of 0\\nrank 0 waits\\n")
            dist.barrier()
"""


@pytest.fixture(scope="module")
def inner(run_session):
    return run_session(SUITE, "-q")


def test_a_deadline_by_marker_ends_the_ranks_and_says_who_is_missing(inner):
    report = inner.of("test_a_rank_never_joins")
    assert [one["status"] for one in report["ranks"]] == ["passed", "stuck"]
    text = report["text"]
    assert text.startswith("rank 1 of 2 was stuck during call at ")
    assert "test_it.py:12 in all_reduce" in text
    assert "It was ended at the deadline of 2 s (pytest-timeout)." in text
    assert "Missing from collective #1 all_reduce on default_pg: rank 0 (which began none)." in text
    assert 2 <= report["duration"] < 10
    assert report["ranks"][1]["exit_status"] == -15


def test_ranks_in_different_collectives_are_told_apart(inner):
    report = inner.of("test_two_different_collectives")
    assert report["outcome"] == "failed"
    assert "all_reduce" in report["text"]
    assert "broadcast" in report["text"] or "barrier" in report["text"]


def test_a_stopped_rank_is_silent_and_is_killed(inner):
    report = inner.of("test_a_rank_is_stopped")
    assert [one["status"] for one in report["ranks"]] == ["silent", "passed"]
    assert report["ranks"][0]["exit_status"] == -9
    assert "answered neither the signal for its stack nor the store" in report["text"]


def test_a_busy_rank_shows_its_line(inner):
    report = inner.of("test_a_rank_loops_for_ever")
    assert [one["status"] for one in report["ranks"]] == ["stuck", "passed"]
    assert "in test_a_rank_loops_for_ever" in report["ranks"][0]["stack"]


def test_children_of_a_stuck_rank_go_with_it(inner):
    assert inner.statuses("test_children_of_a_stuck_rank") == ["stuck", "passed"]
    assert inner.orphans == []


def test_a_rank_that_ignores_sigterm_is_killed(inner):
    report = inner.of("test_ignores_sigterm")
    assert report["ranks"][0]["exit_status"] == -9
    assert report["duration"] < 15


def test_a_collective_in_a_teardown_does_not_deadlock_after_a_failure(inner):
    test = "test_teardown_with_a_collective_after_a_failure_on_one_rank"
    assert inner.outcome(test) == "failed"
    assert inner.of(test, "teardown")["outcome"] == "passed"
    assert inner.of(test, "teardown")["duration"] < 5
    mixed = "test_teardown_with_a_collective_after_a_mixed_hang"
    assert inner.statuses(mixed) == ["stuck", "raised"]
    assert inner.of(mixed, "teardown")["duration"] < 5


def test_the_ranks_that_are_left_tear_down_when_another_has_died(inner):
    assert inner.statuses("test_teardown_of_survivors") == ["passed", "died"]
    assert not (inner.folder / "outside0").exists()
    assert (inner.folder / "outside1").exists()


def test_a_teardown_that_hangs_is_an_error_of_its_own(inner):
    assert inner.outcome("test_a_teardown_that_hangs") == "failed"
    teardown = inner.of("test_a_teardown_that_hangs", "teardown")
    assert teardown["outcome"] == "failed"
    assert teardown["ranks"][0]["status"] == "stuck"
    assert "in barrier" in teardown["text"]


def test_a_setup_that_hangs_because_another_rank_failed_is_ended_after_the_grace(inner):
    report = inner.of("test_a_setup_that_hangs_because_another_failed")
    assert [one["status"] for one in report["ranks"]] == ["stuck", "raised"]
    assert "OSError: no room" in report["text"]
    assert report["duration"] < 5


def test_the_session_goes_on_and_nothing_is_left(inner):
    assert inner.outcome("test_the_session_goes_on") == "passed"
    assert inner.orphans == []


@pytest.mark.parametrize(
    ("source", "args", "ini", "expected"),
    [
        ("@pytest.mark.timeout(3)", (), "timeout = 2", (3, "pytest-timeout", False)),
        ("@pytest.mark.timeout(3, func_only=True)", (), "", (3, "pytest-timeout", True)),
        ("", (), "timeout = 2", (2, "pytest-timeout", False)),
        ("", ("--timeout=4",), "timeout = 2", (4, "pytest-timeout", False)),
        ("", (), "ranks_timeout = 5", (5, "ranks_timeout", False)),
        ("", ("-p", "no:timeout"), "ranks_timeout = 6", (6, "ranks_timeout", False)),
        ("", ("--rank-pdb=0",), "timeout = 2", (math.inf, "--rank-pdb", False)),
    ],
)
def test_the_deadline_is_pytest_timeouts_marker_option_or_ini(pytester, source, args, ini, expected):
    pytester.makeini(f"[pytest]\n{ini}\n")
    module = pytester.makepyfile(f"import pytest\n{source}\n@pytest.mark.ranks(2)\ndef test_it(rank): pass")
    config = pytester.parseconfigure(str(module), "-p", "no:asyncio", *args)
    (item,) = pytester.genitems([pytester.getnode(config, module)])
    began = time.monotonic()
    deadline = deadline_of(item)
    assert (deadline.seconds, deadline.source, deadline.function_only) == expected
    if deadline.function_only:
        assert deadline.whole == math.inf
        assert deadline.of_call() >= began + deadline.seconds
    else:
        assert deadline.whole >= began + deadline.seconds
        assert deadline.of_call() == deadline.whole


@pytest.fixture
def waiting(start_session):
    """A session with ``-s`` whose rank 0 waits for ever, and what it printed until then."""
    started = start_session(ENDLESS, "-s", "-q")
    shown = []
    for line in started.process.stdout:
        shown.append(line.rstrip("\n"))
        if "rank 0 waits" in line:
            break
    return started, shown


def test_control_c_ends_everything_within_seconds(waiting):
    started, _ = waiting
    asked = time.monotonic()
    started.process.send_signal(signal.SIGINT)
    inner = started.finish()
    assert time.monotonic() - asked < 10  # 5 on a machine that does nothing else
    assert inner.status == 2
    assert inner.orphans == []


def test_a_killed_session_leaves_no_rank_behind_and_s_had_shown_every_line_with_its_rank(waiting):
    started, shown = waiting
    started.process.kill()
    assert started.finish(settle=20).orphans == []
    for word in ("out of", "err of", "native of"):
        assert any(line.endswith(f"[rank 0] {word} 0") for line in shown), shown


def test_a_session_killed_while_the_fork_server_imports_leaves_no_server_behind(start_session):
    slow = "import pathlib, time; pathlib.Path('importing').touch(); time.sleep(300)"
    args = ("-q", "-o", "ranks_preload=slow_to_import")
    path = os.pathsep.join(filter(None, [".", os.environ.get("PYTHONPATH")]))
    started = start_session(ENDLESS, *args, env={"PYTHONPATH": path}, extra={"slow_to_import.py": slow})
    until = time.monotonic() + 100
    while not (started.folder / "importing").exists():
        assert time.monotonic() < until
        time.sleep(0.05)  # the file is the server's only sign of life
    started.process.kill()
    assert started.finish(settle=20).orphans == []


def test_the_folder_of_a_killed_session_is_removed_by_the_next_one(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], env={**os.environ, "TMPDIR": str(tmp_path)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob("[!.]*")
    mine = SessionFolder()
    others = SessionFolder()
    assert {*tmp_path.glob("[!.]*")} == {mine.path, others.path}
    assert left not in {mine.path, others.path}
    mine.close()
    others.close()
    assert not [*tmp_path.glob("[!.]*")]


def test_sessions_that_start_at_once_leave_each_other_their_folders(tmp_path):
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", MANY]
    sessions = [subprocess.Popen(command, env=environ, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    said = [session.communicate(timeout=100)[1] for session in sessions]
    assert [session.returncode for session in sessions] == [0] * 4, said
