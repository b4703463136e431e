"""Failures as data: whatever an exception's class does, its description is plain, and readable."""

from __future__ import annotations

import pickle
import signal

import pytest

from harness import faults
from harness.faults import Effect
from harness.ipc import Failure, WorkerFailed
from harness.ipc.failure import describe_exception, describe_exit, failure_from


def raised_by(name):
    try:
        faults.named(name).act()
    except BaseException as error:
        return error
    return None


RAISING = [fault.name for fault in faults.with_effect(Effect.FAILS) if raised_by(fault.name) is not None]


def is_plain(value):
    if type(value) is tuple:
        return all(map(is_plain, value))
    return type(value) in {str, float, bool, int}


@pytest.mark.parametrize("name", RAISING)
def test_a_description_is_made_of_builtin_values_only(name):
    description = describe_exception(raised_by(name))
    assert is_plain(description)
    assert pickle.loads(pickle.dumps(description)) == description


def test_an_unreadable_exception_still_has_a_type_and_a_traceback():
    name, message, text, _, _ = describe_exception(raised_by("hostile-repr"))
    assert name.endswith("UnreadableAltogether")
    assert "__str__ raised SystemExit" in message
    assert "hostile_repr" in text


def test_a_chain_that_bites_its_tail_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    chain = describe_exception(first)[3]
    assert [message for _, message, _ in chain] == ["second"]


def test_a_suppressed_context_is_not_a_cause():
    error = ValueError("shown")
    error.__context__ = KeyError("hidden")
    assert len(describe_exception(error)[3]) == 1
    error.__suppress_context__ = True
    assert describe_exception(error)[3] == ()


def test_strings_of_odd_make_arrive_as_plain_ones():
    class Shouting(str):
        __slots__ = ()

        def encode(self, *_):
            raise RuntimeError

    message = describe_exception(ValueError(Shouting("lone surrogate \udcff")))[1]
    assert type(message) is str
    assert message == "lone surrogate \\udcff"


def test_exit_statuses_are_said_in_words():
    assert describe_exit(-9) == "was killed by SIGKILL (signal 9)"
    assert describe_exit(-200) == "was killed by signal 200"
    assert describe_exit(3) == "exited with status 3"
    assert describe_exit(0) == "exited with status 0 without being asked"


def failure(worker, kind, at, **more):
    return Failure(worker=worker, kind=kind, method="step", message="said", at=at, **more)


def test_the_root_cause_is_the_earliest_and_conclusions_come_last():
    found = WorkerFailed(
        "step", [failure(0, "silent", 1), failure(1, "raised", 3), failure(2, "raised", 2)], size=3
    )
    assert [one.worker for one in found.failures] == [2, 1, 0]
    assert found.root.worker == 2


def test_a_death_noticed_a_moment_after_the_raise_that_it_caused_is_still_the_root():
    found = WorkerFailed("step", [failure(0, "raised", 10.00), failure(1, "died", 10.02)], size=2)
    assert found.root.worker == 1


def test_a_worker_failed_can_itself_be_sent():
    description = describe_exception(raised_by("raise-chained"))
    told = failure_from(description, worker=1, kind="raised", method="step")
    error = WorkerFailed("step", [told], 2)
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert again.failures == error.failures


def test_a_failure_knows_its_signal():
    assert failure(0, "died", 1, exit_status=-11).signal == signal.SIGSEGV
    assert failure(0, "died", 1, exit_status=3).signal is None
