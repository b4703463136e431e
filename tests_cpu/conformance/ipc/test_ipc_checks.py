"""Every IPC check has been seen to fail on a pool with that one bug, by its own assertion, and to pass the others."""

from __future__ import annotations

import sys

import pytest

from harness.conformance.check import load_checks
from harness.zoo import controls, mutants

pytestmark = pytest.mark.timeout(600)

MUTANTS = mutants("ipc")
CHECKS = [check.id for check in load_checks().values() if check.domain == "ipc"]
SMALL_POOL = "harness.zoo.ipc_small_pool:SmallPool"


@pytest.fixture(scope="module")
def verdicts(judged):
    """All cells in one session, so that they are performed side by side."""
    asked = [(mutant.target, mutant.intended, mutant.scenario) for mutant in MUTANTS]
    asked += [("reference", check, "fork") for check in CHECKS]
    asked += [(SMALL_POOL, mutant.intended, "fork") for mutant in MUTANTS if is_small(mutant)]
    asked += [(control.target, "ipc/drain", control.scenarios[0]) for control in controls("ipc")]
    return judged(asked, timeout=580)


def is_small(mutant):
    module, _, name = mutant.target.partition(":")
    return SMALL_POOL.partition(":")[2] in {
        base.__name__ for base in getattr(sys.modules[module], name).__mro__
    }


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_check_that_is_meant_for_a_mutant_fails_it_in_the_expected_way(verdicts, mutant):
    cell = verdicts[mutant.target, mutant.intended, mutant.scenario]
    assert (cell["verdict"], cell["kind"]) == ("fail", str(mutant.kind)), cell["message"]
    assert cell["evidence"]["triggered"]


@pytest.mark.parametrize("check", CHECKS)
def test_the_reference_passes(verdicts, check):
    cell = verdicts["reference", check, "fork"]
    assert cell["verdict"] == "pass", cell["message"]


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if is_small(each)], ids=lambda mutant: mutant.id)
def test_the_small_pool_without_the_bug_passes_the_check_that_fails_it_with_the_bug(verdicts, mutant):
    cell = verdicts[SMALL_POOL, mutant.intended, "fork"]
    assert cell["verdict"] == "pass", cell["message"]


@pytest.mark.parametrize("control", controls("ipc"), ids=lambda control: control.id)
def test_an_unusual_pool_that_is_right_passes(verdicts, control):
    cell = verdicts[control.target, "ipc/drain", control.scenarios[0]]
    assert cell["verdict"] == "pass", cell["message"]


def test_every_check_has_a_mutant():
    assert {mutant.intended for mutant in MUTANTS} == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_states_its_requirement_in_a_sentence(check):
    declared = load_checks()[check]
    assert declared.level in declared.sentence
    assert declared.sentence.endswith(".")
