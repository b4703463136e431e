"""Bad input: one clear sentence each, before anything is started or sent."""

from __future__ import annotations

import math
import os

import pytest

from harness.errors import UsageError
from harness.faults import Victim
from harness.ipc import ForeignProcess, WorkerFailed, WorkerPool


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "2", None])
def test_a_size_that_is_no_positive_whole_number(size):
    with pytest.raises(UsageError, match="a whole number of workers, at least 1"):
        WorkerPool(Victim, size)


def test_a_factory_that_is_not_callable():
    with pytest.raises(UsageError, match=r"must be callable as factory\(index\)"):
        WorkerPool(Victim(0), 1)


def test_a_factory_that_raises(start_method):
    with pytest.raises(WorkerFailed, match="'start' raised ZeroDivisionError: division by zero"):
        WorkerPool(lambda index: 1 / index, 2, start_method=start_method)


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_a_factory_that_cannot_be_sent(start_method):
    rest = (number for number in range(3))
    with pytest.raises(UsageError, match=f"cannot be sent to a worker under {start_method}"):
        WorkerPool(lambda index: next(rest), 1, start_method=start_method)


def test_a_factory_that_cannot_be_sent_need_not_be_under_fork():
    rest = (Victim(number) for number in range(40, 43))
    with WorkerPool(lambda index: next(rest), 1, start_method="fork") as pool:
        assert pool.call("answer", 1) == [(40, 1)]


def test_a_start_method_that_does_not_exist():
    with pytest.raises(UsageError, match="one of spawn, forkserver, fork"):
        WorkerPool(Victim, 1, start_method="thread")


@pytest.mark.parametrize("seconds", [0, -1, math.nan, "1", True])
def test_a_deadline_that_is_no_positive_number(pool, seconds):
    with pytest.raises(UsageError, match="must be a positive number of seconds"):
        pool.call("answer", 1, timeout=seconds)
    with pytest.raises(UsageError, match="must be a positive number of seconds"):
        WorkerPool(Victim, 1, timeout=seconds)


def test_no_deadline_is_infinity(pool):
    assert pool.call("answer", 1, timeout=math.inf) == [(0, 1), (1, 1), (2, 1)]


def test_an_unknown_method_says_which_there_are(pool):
    with pytest.raises(WorkerFailed, match=r"\(Victim\) has no method 'anser'; it has answer, "):
        pool.call("anser", 1)
    with pytest.raises(UsageError, match="the name of a method"):
        pool.call(Victim.answer, 1)


def test_arguments_that_cannot_be_sent_reach_nobody(pool):
    with pytest.raises(UsageError, match=r"the arguments of 'note' cannot be sent .* nothing was sent"):
        pool.call("note", (number for number in range(3)))
    assert pool.call("answer", 1) == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize("chunks", [[], [(1,)] * 2, [(1,)] * 4, [1, 2, 3], [[1], [2], [3]]])
def test_chunks_that_are_not_one_tuple_a_worker(pool, chunks):
    with pytest.raises(UsageError, match="one tuple of arguments for each of the 3 workers"):
        pool.scatter("answer", chunks)


@pytest.mark.parametrize("index", [-1, 3, "0", True, None])
def test_an_index_that_is_no_workers(pool, index):
    with pytest.raises(UsageError, match="from 0 to 2"):
        pool.restart(index)


def test_a_pool_in_a_forked_child_refuses_and_leaves_the_parents_alone(pool):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        outcomes = []
        for use in (lambda: pool.call("answer", 1), lambda: pool.post("note", 1), pool.close):
            try:
                use()
                outcomes.append("worked")
            except ForeignProcess as error:
                outcomes.append(
                    "refused" if f"belongs to process {os.getppid()}" in str(error) else str(error)
                )
        os.write(writing, " ".join(outcomes).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "refused refused refused"
    assert pool.call("answer", 1) == [(0, 1), (1, 1), (2, 1)]


def test_a_with_block_left_by_a_forked_child_does_not_close_the_parents_pool():
    with WorkerPool(Victim, 1, start_method="fork") as pool:
        child = os.fork()
        if child == 0:
            pool.__exit__(None, None, None)
            os._exit(0)
        os.waitpid(child, 0)
        assert pool.call("answer", 1) == [(0, 1)]
