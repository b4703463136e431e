"""A rank that hangs costs seconds, not the session: it is questioned, ended with its children, replaced."""

import signal
import time

import pytest

SUITE = """
    import os, signal, subprocess, sys
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
    import pytest
    import torch.distributed as dist

    @pytest.mark.ranks(2)
    def test_endless(rank):
        if rank.rank == 0:
            print("rank 0 waits", flush=True)
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
    assert "test_it.py:11 in all_reduce" in text
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
    ("args", "ini"),
    [(("--timeout=2",), ""), (("-p", "no:timeout", "-o", "timeout="), "ranks_timeout = 2\n")],
)
def test_the_deadline_comes_from_ini_or_option_too(run_session, args, ini):
    inner = run_session(ENDLESS, "-q", *args, ini=f"    {ini}" if ini else "")
    assert inner.statuses("test_endless") == ["stuck", "passed"]
    assert "It was ended at the deadline of 2 s" in inner.of("test_endless")["text"]
    assert inner.status == 1


def test_control_c_ends_everything_within_five_seconds(start_session):
    started = start_session(ENDLESS, "-s", "-q")
    for line in started.process.stdout:
        if "rank 0 waits" in line:
            break
    asked = time.monotonic()
    started.process.send_signal(signal.SIGINT)
    inner = started.finish()
    assert time.monotonic() - asked < 5
    assert inner.status == 2
    assert inner.orphans == []


def test_a_killed_session_leaves_no_rank_behind(start_session):
    started = start_session(ENDLESS, "-s", "-q")
    for line in started.process.stdout:
        if "rank 0 waits" in line:
            break
    started.process.kill()
    assert started.finish(settle=20).orphans == []
