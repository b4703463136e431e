"""Random schedules of calls, posts, faults and restarts, against a model of what each caller must see.

``HARNESS_SCHEDULES=2000 pytest tests_cpu/ipc/test_ipc_schedules.py`` runs that many instead of the modest default.
A schedule that fails is shrunk by hypothesis and printed with the means to run it again.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from harness import faults
from harness.faults import Effect, Victim
from harness.ipc import WorkerFailed, WorkerPool

SIZE = 2
SCHEDULES = int(os.environ.get("HARNESS_SCHEDULES", "40"))
SHARES = {"fork": 0.6, "forkserver": 0.3, "spawn": 0.1}
FAILS = [fault.name for fault in faults.with_effect(Effect.FAILS)]
DIES = [fault.name for fault in faults.with_effect(Effect.DIES)]

someone = st.sampled_from([(0,), (1,), (0, 1)])
one = st.integers(0, SIZE - 1)
steps = st.one_of(
    st.tuples(st.just("call")),
    st.tuples(st.just("large"), st.integers(0, 1 << 21)),
    st.tuples(st.just("fail"), st.sampled_from(FAILS), someone),
    st.tuples(st.just("die"), st.sampled_from(DIES), someone),
    st.tuples(st.just("kill"), one),
    st.tuples(st.just("late"), st.sampled_from(["wait", "stop"])),
    st.tuples(st.just("abandon")),
    st.tuples(st.just("overlap")),
    st.tuples(st.just("post")),
    st.tuples(st.just("post-fails"), st.sampled_from(FAILS), someone),
    st.tuples(st.just("post-dies"), st.sampled_from(DIES), one),
    st.tuples(st.just("restart"), one),
    st.tuples(st.just("noted")),
)


@dataclass
class Worker:
    """What is known of one worker."""

    alive: bool = True
    owes: int = 0
    """Failed posts that no call has reported."""
    noted: list[int] = field(default_factory=list)


class Model:
    """Drives the pool and knows what each caller must see."""

    def __init__(self, pool):
        self.pool = pool
        self.workers = [Worker() for _ in range(SIZE)]
        self.tokens = iter(range(1, 1_000_000))

    def run(self, schedule):
        for step, *operands in schedule:
            getattr(self, step.replace("-", "_"))(*operands)
        self.call()

    def outcome(self, method, *args, **options):
        """``{index: value}`` and ``{index: failure}`` of a call."""
        timeout = options.pop("timeout", 30)
        call = self.pool.begin(method, *args)
        call.collect(timeout)
        replies = call.replies
        assert sorted(replies) == list(range(SIZE))
        failures = {index: reply.failure for index, reply in replies.items() if reply.failure}
        return {index: reply.value for index, reply in replies.items() if not reply.failure}, failures

    def expect(self, values, failures, honest, struck=(), kind=None):
        """``honest`` is what a worker answers; those in ``struck`` fail as ``kind``."""
        dead = [index for index, worker in enumerate(self.workers) if not worker.alive]
        if dead:
            assert not values
            assert {index: failure.kind for index, failure in failures.items()} == {
                index: "died" if index in dead else "unsent" for index in range(SIZE)
            }
            return False
        for index, worker in enumerate(self.workers):
            if worker.owes:
                failure = failures[index]
                assert failure.posted
                assert len(failure.also) + 1 == worker.owes
                worker.owes = 0
            elif index in struck:
                assert failures[index].kind in kind
                assert not failures[index].posted
            else:
                assert values[index] == honest(index)
        return True

    def call(self):
        token = next(self.tokens)
        self.expect(*self.outcome("answer", token), lambda index: (index, token))

    def large(self, length):
        block = os.urandom(length)
        self.expect(*self.outcome("echo", block), lambda _: block)

    def fail(self, fault, victims):
        token = next(self.tokens)
        kinds = {"raised", "unpicklable", "undecodable"}
        outcome = self.outcome("suffer", fault, victims, token)
        self.expect(*outcome, lambda index: (index, token), victims, kinds)

    def die(self, fault, victims):
        token = next(self.tokens)
        struck = [index for index in victims if not self.workers[index].owes]
        outcome = self.outcome("suffer", fault, victims, token)
        if self.expect(*outcome, lambda index: (index, token), struck, {"died"}):
            for index in struck:
                self.bury(index)

    def kill(self, index):
        process = self.pool.workers[index]
        process.kill()
        assert process.wait(30)
        self.bury(index)

    def bury(self, index):
        self.workers[index] = Worker(alive=False)

    def late(self, how):
        """A call that is hardly answered in time; what its workers say later must reach nobody."""
        token = next(self.tokens)
        stopped = [process.pid for process in self.pool.workers if how == "stop" and process.alive]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        values, failures = self.outcome("wait", 0.1, token, timeout=0.02)
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        if not all(worker.alive for worker in self.workers):
            self.expect(values, failures, None)
            return
        for index, worker in enumerate(self.workers):
            if index in values:  # on a busy machine the caller may wake up so late that the answer is there
                assert values[index] == (index, token)
                assert not worker.owes
            elif failures[index].posted:
                assert len(failures[index].also) + 1 == worker.owes
                worker.owes = 0
            else:
                assert failures[index].kind in {"silent", "unsent"}

    def abandon(self):
        if all(worker.alive and not worker.owes for worker in self.workers):
            self.pool.begin("answer", "abandoned").abandon()

    def overlap(self):
        """Two calls in flight, read in the reverse order."""
        if all(worker.alive and not worker.owes for worker in self.workers):
            first, second = next(self.tokens), next(self.tokens)
            calls = self.pool.begin("answer", first), self.pool.begin("answer", second)
            assert calls[1].results(30) == [(index, second) for index in range(SIZE)]
            assert calls[0].results(30) == [(index, first) for index in range(SIZE)]

    def post(self):
        token = next(self.tokens)
        self.pool.post("note", token)
        for worker in self.workers:
            worker.noted += [token] * worker.alive

    def post_fails(self, fault, victims):
        self.pool.post("suffer", fault, victims)
        if fault not in {
            "unpicklable-result",
            "result-exits",
            "undecodable-result",
        }:  # nobody sends the result
            for index in victims:
                self.workers[index].owes += self.workers[index].alive

    def post_dies(self, fault, victim):
        if fault == "half-written":  # a post writes no reply
            return
        self.pool.post("suffer", fault, (victim,))
        assert self.pool.workers[victim].wait(30)
        self.bury(victim)

    def restart(self, index):
        before = self.pool.pids()
        self.pool.restart(index)
        assert [old != new for old, new in zip(before, self.pool.pids(), strict=True)] == [
            other == index for other in range(SIZE)
        ]
        self.workers[index] = Worker()

    def noted(self):
        self.expect(*self.outcome("noted"), lambda index: (index, self.workers[index].noted))


@pytest.mark.parametrize("start_method", SHARES)
@pytest.mark.timeout(60 + SCHEDULES)
def test_every_caller_sees_what_the_model_says(start_method):
    @settings(
        max_examples=max(1, round(SCHEDULES * SHARES[start_method])),
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(steps, min_size=1, max_size=10))
    def follow(schedule):
        for index in range(SIZE):
            pool.restart(index)
        ran.append(schedule)
        Model(pool).run(schedule)

    ran = []
    me = psutil.Process()
    with WorkerPool(Victim, SIZE, start_method=start_method) as pool:
        before = len(me.children(recursive=True)), me.num_fds()
        try:
            follow()
        finally:
            for index in range(SIZE):
                pool.restart(index)
        assert (len(me.children(recursive=True)), me.num_fds()) == before
    assert len(ran) >= 1


def test_a_model_that_expects_the_wrong_answer_is_contradicted():
    with WorkerPool(Victim, SIZE, start_method="fork") as pool:
        model = Model(pool)
        model.workers[0].noted.append("never posted")
        with pytest.raises(AssertionError):
            model.noted()
        model.workers[0].noted.clear()
        model.noted()
        with pytest.raises(WorkerFailed):
            pool.call("suffer", "raise", (0,))
