"""Faults: each does what its name says, to the process it acts in; schedules come from their seed alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from harness import faults
from harness.errors import UsageError
from harness.faults import Effect, FailingStart, Victim

ACT = "import sys; from harness import faults; faults.named(sys.argv[1]).act(); print('still here')"


@pytest.mark.parametrize("fault", faults.with_effect(), ids=lambda fault: fault.name)
def test_a_fault_says_in_a_sentence_what_happens(fault):
    assert fault.sentence.endswith(".")
    assert faults.named(fault.name) is fault


@pytest.mark.parametrize("fault", faults.with_effect(Effect.DIES), ids=lambda fault: fault.name)
def test_a_deadly_fault_ends_the_process_with_its_own_status(fault):
    if fault.name == "half-written":  # needs a reply to write; see below
        return
    done = subprocess.run(
        [sys.executable, "-c", ACT, fault.name], capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (fault.status, b"")


def test_stop_stops_until_continued():
    child = subprocess.Popen([sys.executable, "-c", ACT, "stop"], stdout=subprocess.PIPE)
    with child:
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        os.kill(child.pid, signal.SIGCONT)
        assert child.stdout.read() == b"still here\n"


def test_half_written_cuts_a_reply_of_either_multiprocessing(tmp_path):
    script = (
        "import {0} as mp\n"
        "from harness import faults\n"
        "def child(pipe):\n"
        "    pipe.send('small')\n"
        "    pipe.send(faults.named('half-written').act())\n"
        "if __name__ == '__main__':\n"
        "    near, far = mp.Pipe()\n"
        "    process = mp.get_context('fork').Process(target=child, args=(far,))\n"
        "    process.start(); far.close()\n"
        "    print(near.recv())\n"
        "    try:\n"
        "        near.recv()\n"
        "    except (EOFError, OSError) as error:\n"
        "        print('cut', process.join(), process.exitcode)\n"
    )
    for package in ("multiprocessing", "multiprocess"):
        command = [sys.executable, "-c", script.format(package)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout == "small\ncut None -9\n", done.stderr


def test_parent_death_strikes_the_owner_and_not_a_fork_server():
    script = (
        "import multiprocess as mp\n"
        "from harness import faults\n"
        "if __name__ == '__main__':\n"
        "    process = mp.get_context('forkserver').Process(target=faults.named('parent-death').act)\n"
        "    process.start(); process.join()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("name", [fault.name for fault in faults.with_effect(Effect.FAILS)])
def test_a_failing_fault_raises_or_returns_what_cannot_be_carried(name):
    import pickle

    try:
        value = faults.named(name).act()
    except BaseException:
        return
    with pytest.raises(BaseException):  # noqa: B017 - whatever its class likes to raise
        pickle.loads(pickle.dumps(value))


def test_the_same_seed_draws_the_same_schedule_and_another_seed_another():
    drawn = [str(faults.draw(seed=seed, steps=50, victims=4)) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_schedule_keeps_to_its_bounds():
    schedule = faults.draw(seed=3, steps=200, victims=3, rate=0.5, faults=[faults.named("kill")])
    assert {strike.victim for strike in schedule.strikes} == {0, 1, 2}
    assert 60 < len(schedule.strikes) < 140
    assert all(schedule.at(strike.step) == strike for strike in schedule.strikes)
    assert faults.draw(seed=3, steps=9, victims=1, rate=0).strikes == ()


def test_a_schedule_never_draws_what_nobody_could_notice_at_once():
    drawn = faults.draw(seed=5, steps=500, victims=1, rate=1).strikes
    assert {strike.fault.effect for strike in drawn} == {Effect.FAILS, Effect.DIES}


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"victims": 0}, {"rate": 1.5}])
def test_a_schedule_out_of_range_is_refused(wrong):
    with pytest.raises(UsageError, match="a schedule needs"):
        faults.draw(seed=1, **{"steps": 1, "victims": 1, **wrong})


def test_an_unknown_fault_is_refused_with_the_nearest_name():
    with pytest.raises(UsageError, match="did you mean 'segfault'"):
        faults.named("segfalt")


def test_a_victim_suffers_only_where_it_is_told_to():
    assert Victim(1).suffer("raise", (0,), "token") == (1, "token")
    with pytest.raises(ValueError, match="longer than the model's context"):
        Victim(0).suffer("raise", (0,))


def test_a_failing_start_builds_victims_elsewhere():
    factory = FailingStart("raise", (1,))
    assert factory(0).index == 0
    with pytest.raises(ValueError, match="longer than the model's context"):
        factory(1)
