"""Deaths: noticed at once, named with their cause, whenever they come."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import psutil
import pytest
from ended import all_gone

from harness import faults
from harness.faults import Effect, FailingStart, Victim
from harness.ipc import WorkerFailed, WorkerPool

DYING = faults.with_effect(Effect.DIES)


def failures_of(call):
    with pytest.raises(WorkerFailed) as caught:
        call()
    return caught.value.failures


@pytest.mark.parametrize("fault", DYING, ids=lambda fault: fault.name)
def test_death_in_a_call_is_named_with_its_status_and_the_others_are_heard(pool, fault):
    call = pool.begin("suffer", fault.name, (1,), "token")
    (failure,) = failures_of(lambda: call.results(30))
    assert (failure.worker, failure.kind, failure.exit_status) == (1, "died", fault.status)
    assert [call.replies[index].value for index in (0, 2)] == [(0, "token"), (2, "token")]


def test_a_killed_worker_is_reported_long_before_the_deadline(pool):
    call = pool.begin("wait", 20)
    killed = time.monotonic()
    pool.workers[1].kill()
    while 1 in call.pending:
        assert call.wait(20)
    assert time.monotonic() - killed < 2
    assert call.replies[1].failure.signal == signal.SIGKILL
    call.abandon()
    for index in (0, 2):
        pool.restart(index)


def test_death_while_idle_is_noticed_by_the_next_call_which_asks_nobody(pool):
    pool.workers[0].kill()
    assert pool.workers[0].wait(20)
    failures = failures_of(lambda: pool.call("note", "asked"))
    assert [(failure.worker, failure.kind) for failure in failures] == [
        (0, "died"),
        (1, "unsent"),
        (2, "unsent"),
    ]
    assert "pool.restart(0)" in failures[1].message
    pool.restart(0)
    assert pool.call("noted")[1:] != [(1, ["asked"]), (2, ["asked"])]


def test_a_death_half_way_through_a_reply_says_how_much_had_arrived(pool):
    (failure,) = failures_of(lambda: pool.call("suffer", "half-written", (2,)))
    assert "half-way through a reply" in failure.message


def test_a_reply_sent_just_before_the_death_still_counts(pool):
    call = pool.begin("answer", "last words")
    assert not any(worker.wait(0.2) for worker in pool.workers)
    for worker in pool.workers:
        worker.kill()
        assert worker.wait(20)
    assert call.results(30) == [(index, "last words") for index in range(3)]


def test_all_may_die_at_once(pool):
    failures = failures_of(lambda: pool.call("suffer", "kill", (0, 1, 2)))
    assert [failure.kind for failure in failures] == ["died"] * 3


def test_a_stopped_worker_is_silent_until_its_deadline_and_serves_again_when_continued(pool):
    pid = pool.pids()[1]
    os.kill(pid, signal.SIGSTOP)
    (failure,) = failures_of(lambda: pool.call("answer", "stopped", timeout=0.3))
    assert (failure.worker, failure.kind) == (1, "silent")
    assert "(stopped)" in failure.message
    os.kill(pid, signal.SIGCONT)
    assert pool.call("answer", "again") == [(0, "again"), (1, "again"), (2, "again")]


def test_a_worker_that_holds_its_interpreter_can_still_be_replaced(pool):
    (failure,) = failures_of(lambda: pool.call("suffer", "hold-interpreter", (0,), timeout=0.3))
    assert failure.kind == "silent"
    pool.restart(0)
    assert pool.call("answer", 1)[0] == (0, 1)


def test_restart_replaces_one_worker_and_leaves_the_others(pool):
    before = pool.pids()
    pool.restart(1)
    after = pool.pids()
    assert [before[index] == after[index] for index in range(3)] == [True, False, True]
    assert not psutil.pid_exists(before[1])


def test_a_restart_fails_the_calls_that_the_old_worker_owed(pool):
    call = pool.begin("wait", 0.5, "token")
    pool.restart(1)
    (failure,) = failures_of(lambda: call.results(30))
    assert (failure.worker, failure.kind) == (1, "died")
    assert "pool.restart(1)" in failure.message


@pytest.mark.parametrize("fault", ["raise", "kill", "exit-zero", "system-exit"])
def test_a_failure_while_starting_is_raised_at_once_and_nobody_stays(pool, start_method, fault):
    before = set(psutil.Process().children(recursive=True))
    begun = time.monotonic()
    with pytest.raises(WorkerFailed) as caught:
        WorkerPool(FailingStart(fault, (1,)), 2, start_method=start_method, start_timeout=60)
    assert time.monotonic() - begun < 30
    assert [failure.worker for failure in caught.value.failures] == [1]
    assert caught.value.method == "start"
    assert set(psutil.Process().children(recursive=True)) == before


def test_a_worker_that_never_finishes_starting_meets_the_deadline(start_method):
    failures = failures_of(
        lambda: WorkerPool(FailingStart("hang", (0,)), 1, start_method=start_method, start_timeout=0.5)
    )
    assert [(failure.worker, failure.kind) for failure in failures] == [(0, "silent")]


def test_a_dead_workers_grandchildren_end_with_it(pool):
    worker, grandchild = pool.call("beget")[1]
    os.kill(worker, signal.SIGKILL)
    failures_of(lambda: pool.call("answer", 0))
    assert all_gone([grandchild], 5)
    for index in (0, 2):
        pool.restart(index)


def test_a_grandchild_that_outlives_its_parent_does_not_hide_the_death(start_method):
    class Forker(Victim):
        def fork_and_die(self):
            if os.fork() == 0:
                time.sleep(30)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)

    with WorkerPool(Forker, 1, start_method=start_method) as pool:
        begun = time.monotonic()
        (failure,) = failures_of(lambda: pool.call("fork_and_die"))
        assert failure.kind == "died"
        assert time.monotonic() - begun < 10


def test_a_worker_that_closes_its_pipe_is_ended_and_said_to_have_closed_it(start_method):
    class Careless(Victim):
        def close_everything(self):
            os.closerange(3, 1 << 16)
            time.sleep(60)

    with WorkerPool(Careless, 1, start_method=start_method) as pool:
        (failure,) = failures_of(lambda: pool.call("close_everything"))
        assert failure.kind == "died"
        assert "closed its pipe" in failure.message


def test_bytes_that_are_no_reply_end_the_worker_and_are_named(start_method):
    class Chatty(Victim):
        def write_to_the_pipe(self):
            frame = sys._getframe()
            while not hasattr(frame.f_locals.get("self"), "_pipe"):
                frame = frame.f_back
            frame.f_locals["self"]._pipe.sendall(b"progress: 50% of the weights are loaded\n")
            time.sleep(60)

    with WorkerPool(Chatty, 1, start_method=start_method) as pool:
        (failure,) = failures_of(lambda: pool.call("write_to_the_pipe"))
        assert failure.kind == "died"
        assert "no reply" in failure.message


def test_threads_that_wait_on_a_dead_worker_all_hear_of_it(pool):
    heard = []

    def ask():
        heard.append(failures_of(lambda: pool.call("wait", 5))[0].kind)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    while len(pool._board._calls) < 3:
        pass
    for worker in pool.workers:
        worker.kill()
    for thread in threads:
        thread.join(30)
    assert heard == ["died"] * 3


@pytest.mark.parametrize("start_method", ["spawn", "fork"])
def test_a_worker_that_somebody_else_has_reaped_is_still_a_dead_worker(start_method):
    with WorkerPool(Victim, 2, start_method=start_method) as pool:
        pid = pool.pids()[1]
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        failures = failures_of(lambda: pool.call("answer", 1))
        assert (failures[0].worker, failures[0].kind, failures[0].exit_status) == (1, "died", None)
        assert "another part of this program has reaped it" in failures[0].message
        pool.restart(1)
        assert pool.call("answer", 2) == [(0, 2), (1, 2)]


def test_a_call_that_another_thread_makes_during_a_restart_never_meets_a_worker_without_its_object(pool):
    strange, refused = [], 0
    over = threading.Event()

    def ask():
        nonlocal refused
        while not over.is_set():
            try:
                if pool.call("answer", 1) != [(0, 1), (1, 1), (2, 1)]:
                    strange.append("wrong answer")
            except WorkerFailed as error:
                refused += 1
                strange.extend(f.headline() for f in error.failures if f.kind not in {"died", "unsent"})

    thread = threading.Thread(target=ask)
    thread.start()
    for _ in range(4):
        pool.restart(1)
    over.set()
    thread.join(60)
    assert strange == []
    assert refused < 20_000  # who asks again at once does not keep the restart from its turn
