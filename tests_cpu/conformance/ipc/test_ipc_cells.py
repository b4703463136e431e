"""Cells of IPC checks: however an act ends, there is a verdict that says so, and nobody is left."""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import oddities
import psutil
import pytest

from harness.conformance.check import check_of
from harness.conformance.ipc import CHECK_MODULES, leftovers
from harness.conformance.ipc.ahead import Ahead, Director, Order, Scout
from harness.conformance.ipc.cell import IpcCell
from harness.conformance.ipc.disposable import perform
from harness.conformance.ipc.scenarios import IpcScenario, full
from harness.conformance.ipc.test_answers import act_smoke
from harness.conformance.ipc.test_answers import test_smoke as check_smoke
from harness.conformance.ipc.test_deaths import act_kill_idle
from harness.conformance.ipc.test_failures import act_post
from harness.conformance.verdict import Kind, NotApplicable, Violation
from harness.errors import HarnessError
from harness.subjects import Subject

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """The acting process imports the oddities too."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))


@pytest.fixture
def cell():
    ahead = Ahead()

    def make(name, scenario="spawn"):
        subject = Subject(name, "", {"ipc": f"oddities:{name}"})
        return IpcCell(Director(subject, IpcScenario(scenario), limit=60), ahead, lambda: None)

    yield make
    ahead.close()


def violation_of(act, *given, **more):
    with pytest.raises(Violation) as caught:
        act(*given, **more)
    return caught.value


def test_an_act_that_ends_well_passes_and_says_how_long_it_took(cell):
    passing = cell("Bare")
    passing.act(act_smoke)
    assert passing.evidence["acted_seconds"] > 0


def test_a_subject_that_hangs_is_a_hang_that_names_the_step_and_shows_the_stack(cell):
    hanging = cell("Hangs")
    violation = violation_of(hanging.act, act_smoke, deadline=1.5)
    assert violation.kind is Kind.HANG
    assert "it stood still at: call answer" in violation.message
    assert "oddities.py" in hanging.evidence["stderr"]
    assert any("start 1 workers" in step for step in hanging.evidence["timeline"])


def test_a_subject_that_ends_its_process_has_died_with_its_status_and_last_words(cell):
    dying = cell("Exits")
    violation = violation_of(dying.act, act_smoke)
    assert violation.kind is Kind.DIED
    assert "exited with status 7" in violation.message
    assert "last words" in dying.evidence["stderr"]


def test_a_process_that_stays_is_an_orphan_that_is_named_and_ended(cell):
    leaving = cell("LeavesAProcess")
    violation = violation_of(leaving.act, act_smoke)
    assert violation.kind is Kind.ORPHAN
    assert "sleep 600" in violation.message
    pid = int(leaving.evidence["left"][0].split()[1])
    with contextlib.suppress(psutil.NoSuchProcess):
        assert psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_a_close_that_raises_is_a_violation(cell):
    violation = violation_of(cell("RaisesAtClose").act, act_smoke)
    assert (violation.kind, violation.message) == (Kind.RAISED, "close raised RuntimeError: cannot close")


def test_what_came_before_a_hang_at_close_is_what_is_reported(cell):
    violation = violation_of(cell("FailsThenHangsAtClose").act, act_smoke, deadline=2)
    assert violation.kind is Kind.RAISED
    assert "no worker" in violation.message
    assert "it stood still at: close" in violation.message


def test_a_broken_adapter_fails_the_smoke_check_as_such(cell):
    assert violation_of(check_smoke, cell("Exits")).kind is Kind.BROKEN


def test_a_mistake_of_our_own_is_an_error_and_speaks_against_nobody(cell):
    with pytest.raises(HarnessError, match="ZeroDivisionError: our own mistake"):
        cell("Bare").act(oddities.act_raises)


def test_an_owner_that_dies_before_its_time_is_not_taken_for_a_killed_one(cell):
    with pytest.raises((HarnessError, Violation)):
        cell("Bare").act_to_death(oddities.act_kills_itself)


@pytest.mark.parametrize(("act", "capability"), [(act_post, "post"), (act_kill_idle, "pids")])
def test_an_undeclared_capability_is_not_applicable(cell, act, capability):
    with pytest.raises(NotApplicable, match=f"declares no {capability}"):
        cell("Bare").act(act)


def test_a_subject_without_a_choice_of_start_methods_has_the_first_only(cell):
    with pytest.raises(NotApplicable, match="no choice of start methods"):
        cell("Bare", "fork").act(act_smoke)


def test_several_acts_are_reported_together(cell):
    several = cell("Hangs")
    violation = violation_of(several.act_each, {"one": act_smoke, "two": act_smoke}, deadline=1)
    assert violation.message.startswith("2 of 2: one: no end within")
    assert several.evidence["two"].startswith("no end")


def test_an_aborted_act_is_killed_at_once(cell):
    abort = threading.Event()
    abort.set()
    begun = time.monotonic()
    arguments = {"subject": "oddities:Hangs", "scenario": "spawn", "act": f"{act_smoke.__module__}:act_smoke"}
    assert perform(arguments, deadline=60, abort=abort).status is None
    assert time.monotonic() - begun < 20


def test_nobody_carries_a_mark_that_nobody_set():
    assert leftovers.outliving("no such mark", 5) == []


CHECKS = [
    function
    for module in CHECK_MODULES
    for function in vars(__import__(f"harness.conformance.ipc.{module}", fromlist=["x"])).values()
    if check_of(function) is not None
]


@pytest.mark.parametrize("function", CHECKS, ids=lambda function: check_of(function).id)
def test_a_scout_hears_what_a_check_wants_performed(function):
    subject = Subject("reference", "", {"ipc": "harness.subjects.ipc_reference:Reference"})
    orders = Scout(Director(subject, full("cpu")[0], limit=50)).hear(function)
    assert orders
    assert all(isinstance(order, Order) and order.deadline <= 50 for order in orders)
