"""Calls: who answers what, in which order, however the other workers fare."""

from __future__ import annotations

import threading
import time

import pytest

from harness import faults
from harness.faults import Effect, Victim
from harness.ipc import WorkerFailed, WorkerPool

MIB = 1024 * 1024


def test_results_come_in_worker_order_whoever_is_fastest(pool):
    assert pool.scatter("wait", [(0.2, "a"), (0.1, "b"), (0, "c")]) == [(0, "a"), (1, "b"), (2, "c")]


def test_broadcast_overlaps_the_workers(pool):
    begun = time.monotonic()
    pool.call("wait", 0.5)
    assert time.monotonic() - begun < 1.2  # one after the other would take 1.5 s


def test_a_closure_is_a_factory(start_method):
    offset = 40

    class Counter:
        def __init__(self, index):
            self.index = index

        def value(self):
            return self.index + offset

    with WorkerPool(lambda index: Counter(index), 2, start_method=start_method) as pool:  # noqa: PLW0108
        assert pool.call("value") == [40, 41]


def test_lambdas_travel_as_arguments_and_results(pool):
    doubled = pool.call("echo", lambda number: 2 * number)
    assert [function(21) for function in doubled] == [42, 42, 42]


@pytest.mark.parametrize("failing", [(0,), (1,), (2,), (0, 1, 2)], ids=["first", "middle", "last", "all"])
def test_three_calls_after_a_failed_one_return_their_own_answers(pool, failing):
    with pytest.raises(WorkerFailed) as caught:
        pool.call("suffer", "raise", failing, "failed")
    assert sorted(failure.worker for failure in caught.value.failures) == list(failing)
    for token in ("one", "two", "three"):
        assert pool.call("answer", token) == [(0, token), (1, token), (2, token)]


def test_every_healthy_reply_is_collected_before_the_failure_is_raised(pool):
    call = pool.begin("suffer", "raise", (0,), "token")
    with pytest.raises(WorkerFailed):
        call.results(30)
    assert {index: reply.value for index, reply in call.replies.items() if reply.failure is None} == {
        1: (1, "token"),
        2: (2, "token"),
    }


def test_a_failure_is_raised_soon_after_the_last_healthy_reply(pool):
    begun = time.monotonic()
    with pytest.raises(WorkerFailed):
        pool.scatter("echo", [(1,), (1, "too many"), (1,)])
    assert time.monotonic() - begun < 1


@pytest.mark.parametrize("fault", faults.with_effect(Effect.FAILS), ids=lambda fault: fault.name)
def test_a_fault_that_spares_the_process_fails_that_call_alone(pool, fault):
    before = pool.pids()
    with pytest.raises(WorkerFailed) as caught:
        pool.call("suffer", fault.name, (1,))
    assert [failure.worker for failure in caught.value.failures] == [1]
    assert pool.call("answer", "next") == [(0, "next"), (1, "next"), (2, "next")]
    assert pool.pids() == before


def test_a_failure_carries_what_a_person_needs_to_find_it(pool):
    with pytest.raises(WorkerFailed) as caught:
        pool.call("suffer", "raise-chained", (2,))
    failure = caught.value.root
    assert (failure.worker, failure.kind, failure.method) == (2, "raised", "suffer")
    assert (failure.type_name, failure.message) == ("RuntimeError", "the engine is not ready")
    assert [(cause.type_name, cause.relation) for cause in failure.causes] == [
        ("OSError", "cause"),
        ("KeyError", "context"),
    ]
    assert "raise_chained" in failure.traceback
    assert "worker 2: 'suffer' raised RuntimeError: the engine is not ready" in str(caught.value)


def test_an_unpicklable_result_is_told_from_a_raise_and_from_an_undecodable_one(pool):
    kinds = {}
    for name in ("raise", "unpicklable-result", "undecodable-result"):
        with pytest.raises(WorkerFailed) as caught:
            pool.call("suffer", name, (0,))
        kinds[name] = caught.value.root.kind
    assert kinds == {
        "raise": "raised",
        "unpicklable-result": "unpicklable",
        "undecodable-result": "undecodable",
    }


def test_the_root_cause_comes_first_though_a_lower_worker_failed_after_it(pool):
    with pytest.raises(WorkerFailed) as caught:
        pool.scatter("wait", [(0.3, 0, "one too many"), (0,), (0,)])
    assert caught.value.root.worker == 0
    call = pool.begin("wait", 0)
    call.results(30)
    with pytest.raises(WorkerFailed) as caught:
        pool.scatter("suffer", [("hostile-init", (0,)), ("raise", (1,)), ("raise", ())])
    moments = [failure.at for failure in caught.value.failures]
    assert moments == sorted(moments)


def test_a_message_longer_than_a_pipe_arrives_whole(pool):
    with pytest.raises(WorkerFailed) as caught:
        pool.call("suffer", "raise-long", (1,))
    assert len(caught.value.root.message) == faults.raising.LONG_MESSAGE_BYTES


def test_64_mib_go_both_ways_at_once(start_method):
    block = bytes(range(256)) * (64 * MIB // 256)
    with WorkerPool(Victim, 1, start_method=start_method) as pool:
        first = pool.begin("zeros", 64 * MIB)  # a reply that nobody reads yet …
        second = pool.begin("echo", block)  # … while a request as large is on its way
        assert [len(value) for value in first.results(60)] == [64 * MIB]
        assert second.results(60) == [block]


def test_buffers_that_travel_beside_the_pickle_arrive_equal(pool):
    numpy = pytest.importorskip("numpy")
    arrays = [numpy.arange(200_000), numpy.arange(100_000)[::2], numpy.zeros((0, 3))]
    for returned in pool.call("echo", arrays):
        assert all(numpy.array_equal(one, other) for one, other in zip(returned, arrays, strict=True))
        returned[0][0] = -1  # what a worker sent belongs to the caller


def test_a_reply_after_its_deadline_is_dropped_and_never_handed_to_the_next_call(pool):
    late = pool.late_replies
    with pytest.raises(WorkerFailed) as caught:
        pool.call("wait", 0.5, "late", timeout=0.1)
    assert {failure.kind for failure in caught.value.failures} == {"silent"}
    for token in ("one", "two", "three"):
        assert pool.call("answer", token) == [(0, token), (1, token), (2, token)]
    assert pool.late_replies == late + 3


def test_a_deadline_names_who_was_silent_and_keeps_the_answers_of_the_others(pool):
    call = pool.begin("suffer", "slow", (1,))
    with pytest.raises(WorkerFailed) as caught:
        call.results(0.05)
    assert [failure.worker for failure in caught.value.failures] == [1]
    assert "no reply within 0.05 s" in str(caught.value)
    assert call.replies[0].value == (0, None)


def test_a_request_that_was_not_begun_by_its_deadline_is_withdrawn(pool):
    pool.begin("wait", 0.6)
    big = pool.begin("size", bytes(8 * MIB))  # fills the pipe while the workers wait
    with pytest.raises(WorkerFailed) as caught:
        pool.call("note", "never", timeout=0.1)
    assert {failure.kind for failure in caught.value.failures} == {"unsent"}
    assert big.results(30) == [8 * MIB] * 3
    assert all("never" not in noted for _, noted in pool.call("noted"))


def test_an_interrupted_caller_leaves_the_pool_in_order(pool):
    call = pool.begin("wait", 0.3, "abandoned")
    call.abandon()
    assert call.pending == set()
    assert pool.call("answer", "mine") == [(0, "mine"), (1, "mine"), (2, "mine")]


def test_begin_returns_at_once_and_wait_tells_of_each_reply(pool):
    begun = time.monotonic()
    call = pool.begin("wait", 0.2, "token")
    assert time.monotonic() - begun < 0.15
    assert not call.wait(0)
    assert call.pending == {0, 1, 2}
    while call.pending:
        assert call.wait(30)
    assert not call.wait(0)
    assert {index: reply.value for index, reply in call.replies.items()} == {
        index: (index, "token") for index in range(3)
    }


def test_the_caller_may_change_its_data_once_begin_has_returned(pool):
    pool.begin("wait", 0.3)  # nobody reads meanwhile, so most of the request waits in the parent
    numpy = pytest.importorskip("numpy")
    block = numpy.ones(4 * MIB, dtype=numpy.uint8)
    call = pool.begin("echo", block)
    block[:] = 0
    assert all(value.min() == 1 for value in call.results(30))


def test_calls_of_several_threads_never_mix(pool):
    mixed = []

    def ask(thread):
        for turn in range(40):
            token = (thread, turn, b"x" * (turn * 4096))
            if pool.call("answer", token) != [(index, token) for index in range(3)]:
                mixed.append(token[:2])

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not mixed
    assert not any(thread.is_alive() for thread in threads)


def test_one_thread_that_fails_does_not_disturb_the_others(pool):
    outcomes = []

    def fail():
        for _ in range(30):
            with pytest.raises(WorkerFailed):
                pool.call("suffer", "raise", (0, 2))

    def succeed():
        outcomes.extend(pool.call("answer", turn) for turn in range(30))

    threads = [threading.Thread(target=target) for target in (fail, succeed, fail)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == [[(index, turn) for index in range(3)] for turn in range(30)]


def test_a_method_that_forks_and_comes_back_twice_answers_once(pool):
    late = pool.late_replies
    assert pool.call("suffer", "fork-and-return", (1,)) == [(0, None), "forked", (2, None)]
    assert pool.call("answer", "next") == [(0, "next"), (1, "next"), (2, "next")]
    assert pool.late_replies == late


def test_an_interrupt_between_calls_changes_nothing_and_in_a_call_fails_it(pool):
    import os
    import signal

    os.kill(pool.pids()[1], signal.SIGINT)
    assert pool.call("answer", 1) == [(0, 1), (1, 1), (2, 1)]
    call = pool.begin("wait", 20)
    while pool.workers[1].state() != "sleeping":
        pass
    threading.Timer(0.3, os.kill, (pool.pids()[1], signal.SIGINT)).start()
    while 1 in call.pending:
        assert call.wait(20)
    call.abandon()
    assert call.replies[1].failure.type_name == "KeyboardInterrupt"
    for index in (0, 2):
        pool.restart(index)


def test_the_mains_own_classes_and_functions_travel(tmp_path, start_method):
    import subprocess
    import sys

    script = tmp_path / "script.py"
    script.write_text(
        "from harness.ipc import WorkerPool\n"
        "BASE = 7\n"
        "class Engine:\n"
        "    def __init__(self, index): self.index = index\n"
        "    def add(self, x): return self.index + x + BASE\n"
        "if __name__ == '__main__':\n"
        f"    with WorkerPool(Engine, 2, start_method={start_method!r}) as pool:\n"
        "        print(pool.call('add', 1))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("[8, 9]\n", "")


def test_victims_are_plain_objects():
    assert Victim(4).answer("x") == (4, "x")
