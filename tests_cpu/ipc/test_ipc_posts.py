"""Posts: no reply, and no failure that nobody hears of."""

from __future__ import annotations

import pytest

from harness.faults import Victim
from harness.ipc import UnreportedPost, WorkerFailed, WorkerPool


def test_posts_run_in_order_before_the_next_call(pool):
    tokens = [object.__name__, 1, 2.5]
    for token in tokens:
        pool.post("note", token)
    assert all(noted[-3:] == tokens for _, noted in pool.call("noted"))


def test_a_failed_post_surfaces_on_the_next_call_as_what_it_is(pool):
    pool.post("suffer", "raise", (1,))
    with pytest.raises(WorkerFailed) as caught:
        pool.call("note", "after")
    (failure,) = caught.value.failures
    assert (failure.worker, failure.method, failure.posted) == (1, "suffer", True)
    assert "post of 'suffer' raised ValueError" in str(caught.value)


def test_the_call_that_reports_a_failed_post_does_not_run_on_that_worker(pool):
    pool.post("suffer", "raise", (1,))
    with pytest.raises(WorkerFailed):
        pool.call("note", "reported")
    ran = {index for index, noted in pool.call("noted") if "reported" in noted}
    assert ran == {0, 2}


def test_a_failed_post_is_reported_once(pool):
    pool.post("suffer", "raise", (0, 1, 2))
    with pytest.raises(WorkerFailed):
        pool.call("answer", 1)
    assert pool.call("answer", 2) == [(0, 2), (1, 2), (2, 2)]


def test_several_failed_posts_are_all_reported_by_one_call(pool):
    pool.post("suffer", "raise", (1,))
    pool.post("suffer", "system-exit", (1,))
    with pytest.raises(WorkerFailed) as caught:
        pool.call("answer", 1)
    assert [failure.type_name for failure in caught.value.failures] == ["ValueError", "SystemExit"]


def test_a_post_that_kills_its_worker_surfaces_as_a_death(pool):
    pool.post("suffer", "kill", (2,))
    assert pool.workers[2].wait(20)
    with pytest.raises(WorkerFailed) as caught:
        pool.call("answer", 1)
    assert (caught.value.root.worker, caught.value.root.kind) == (2, "died")


def test_an_unpicklable_result_of_a_post_is_nobodys_business(pool):
    pool.post("suffer", "unpicklable-result", (0, 1, 2))
    assert pool.call("answer", 1) == [(0, 1), (1, 1), (2, 1)]


def test_a_large_post_to_busy_workers_returns_at_once_and_arrives(pool):
    call = pool.begin("wait", 0.4)
    pool.post("note", bytes(16 * 1024 * 1024))
    assert call.pending == {0, 1, 2}
    assert all(len(noted[-1]) == 16 * 1024 * 1024 for _, noted in pool.call("noted"))
    for index in range(3):
        pool.restart(index)


def test_a_failed_post_that_no_call_reports_is_a_warning_of_close(start_method):
    pool = WorkerPool(Victim, 2, start_method=start_method)
    pool.post("suffer", "raise", (1,))
    with pytest.warns(UnreportedPost, match="worker 1: post of 'suffer' raised ValueError"):
        pool.close()


def test_a_report_that_comes_after_its_calls_deadline_goes_to_the_next_call(pool):
    pool.post("wait", 0.4)
    pool.post("suffer", "raise", (1,))
    with pytest.raises(WorkerFailed) as caught:
        pool.call("answer", "too soon", timeout=0.05)
    assert {failure.kind for failure in caught.value.failures} == {"silent"}
    with pytest.raises(WorkerFailed) as caught:
        pool.call("note", "then")
    assert [(failure.worker, failure.posted) for failure in caught.value.failures] == [(1, True)]
    assert {index for index, noted in pool.call("noted") if "then" in noted} == {0, 2}
    assert pool.call("answer", "next") == [(0, "next"), (1, "next"), (2, "next")]


def test_a_report_that_arrived_for_a_call_that_was_abandoned_goes_to_the_next_call(pool):
    pool.post("suffer", "raise", (1,))
    call = pool.begin("answer", "abandoned")
    other = pool.begin("answer", "read")
    assert other.results(30) == [(0, "read"), (1, "read"), (2, "read")]
    call.abandon()
    with pytest.raises(WorkerFailed, match="post of 'suffer' raised ValueError"):
        pool.call("answer", "next")
