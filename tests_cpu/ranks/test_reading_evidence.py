"""What is read from stacks, recorded collectives and devices, without any ranks."""

import subprocess
import sys

import torch

from harness.ranks import leftovers
from harness.ranks.collectives import Collective, missing_from
from harness.ranks.holdings import command_of
from harness.ranks.leftovers import Fingerprint
from harness.ranks.outcome import RankOutcome
from harness.ranks.stacks import Place, main_thread_frames, place_of, without_machinery

DUMP = """
Thread 0x00007fedbaffd6c0 (most recent call first):
  File "/site-packages/harness/ranks/evidence.py", line 45 in answer
  File "/usr/lib/python3.11/threading.py", line 982 in run

Thread 0x00007fedbaffd6c1 (most recent call first):
  File "/home/me/loader.py", line 7 in prefetch

Current thread 0x00007fede1296b80 (most recent call first):
  File "/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/home/me/sync.py", line 17 in gather
  File "/home/me/test_sync.py", line 5 in test_sync
  File "/site-packages/_pytest/python.py", line 187 in pytest_pyfunc_call
  File "/site-packages/harness/ranks/session.py", line 153 in _phase
"""


def collective(number, operation="all_reduce", finished=False, tensors="float[3]", group="default_pg"):
    return Collective(number, operation, tensors, group, finished)


def test_the_main_thread_is_the_one_that_runs_the_rank():
    frames = main_thread_frames(DUMP)
    assert frames[0][2] == "all_reduce"
    assert place_of(frames) == Place("/home/me/sync.py:17", "gather", "all_reduce")
    assert str(place_of(frames)) == "/home/me/sync.py:17 in all_reduce"


def test_a_stack_without_a_line_of_the_users_is_an_unknown_place():
    assert str(place_of([])) == "an unknown place"


def test_a_dump_is_shown_without_what_is_the_same_in_every_rank():
    shown = without_machinery(DUMP)
    assert "evidence.py" not in shown
    assert "pytest_pyfunc_call" not in shown
    assert "loader.py" in shown
    assert "test_sync.py" in shown


def test_who_began_fewer_collectives_is_missing():
    told = missing_from({0: collective(7), 1: collective(5, "broadcast", finished=True), 2: None})
    assert told == (
        "Missing from collective #7 all_reduce on default_pg: "
        "rank 1 (whose last was #5 broadcast), rank 2 (which began none)."
    )


def test_ranks_in_different_operations_of_the_same_number_are_told_apart():
    told = missing_from({0: collective(3), 1: collective(3, "barrier", tensors="")})
    assert told == (
        "The ranks began different collectives as #3 on default_pg: rank 0 all_reduce(float[3]), rank 1 barrier()."
    )


def test_nothing_is_said_where_nobody_waits_or_groups_differ():
    assert missing_from({0: collective(1, finished=True), 1: None}) == ""
    assert missing_from({0: collective(2), 1: collective(1, finished=True, group="another")}) == ""


def test_a_process_that_did_no_collective_has_recorded_none():
    asked = "import torch.distributed, harness.ranks.collectives as c; print(c.last_recorded())"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["None"]


def test_an_outcome_survives_the_wire():
    outcome = RankOutcome(1, "died", "was killed", -9, "stack", (("name", 1),))
    assert RankOutcome.from_data(outcome.as_data()) == outcome


def test_a_device_error_that_stays_is_found(monkeypatch):
    def synchronize():
        raise RuntimeError("CUDA error: device-side assert triggered\nmore")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert (
        leftovers.sticky_device_error() == "device error that stays: CUDA error: device-side assert triggered"
    )


def test_device_memory_that_stays_allocated_is_a_leak(monkeypatch):
    before = Fingerprint.take()
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 3 << 20)
    assert Fingerprint.take().since(before).leaks == [f"{3 << 20} bytes of device memory left allocated"]


NAMELESS = """
import ctypes, sys
ctypes.CDLL(None).prctl(15, b"\\xff\\xfe", 0, 0, 0)
print(flush=True)
sys.stdin.read()
"""


def test_a_process_whose_name_is_not_text_has_a_command():
    """Or looking for leftovers would fail where a test has left such a one."""
    command = [sys.executable, "-c", NAMELESS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert command_of(process.pid).startswith(sys.executable)
