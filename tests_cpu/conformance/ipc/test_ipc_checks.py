"""Every IPC check has been seen to fail on a pool with that one bug, by its own assertion, and to pass the others."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from harness.conformance.check import load_checks
from harness.zoo import controls, mutants

pytestmark = pytest.mark.timeout(400)

MUTANTS = mutants("ipc")
CHECKS = [check.id for check in load_checks().values() if check.domain == "ipc"]
SMALL_POOL = "harness.zoo.ipc_small_pool:SmallPool"
VISIT = """
import json, sys
from harness.conformance.plan import Request
from harness.conformance.run import run
cells = run(Request((), cells=tuple(map(tuple, json.loads(sys.argv[1]))), device="cpu"), lambda _: None, lambda _: None)
print(json.dumps([[c.subject, c.check, c.scenario, str(c.verdict), str(c.kind), c.message, c.evidence.get("triggered")]
                  for c in cells]))
"""


@pytest.fixture(scope="module")
def verdicts():
    """All cells in one session, so that they are performed side by side."""
    asked = [(mutant.target, mutant.intended, mutant.scenario) for mutant in MUTANTS]
    asked += [("reference", check, "fork") for check in CHECKS]
    asked += [(SMALL_POOL, mutant.intended, "fork") for mutant in MUTANTS if is_small(mutant)]
    asked += [(control.target, "ipc/drain", control.scenarios[0]) for control in controls("ipc")]
    command = [sys.executable, "-c", VISIT, json.dumps(list(dict.fromkeys(asked)))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=380, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {tuple(cell[:3]): cell[3:] for cell in json.loads(done.stdout.splitlines()[-1])}


def is_small(mutant):
    module, _, name = mutant.target.partition(":")
    return SMALL_POOL.partition(":")[2] in {
        base.__name__ for base in getattr(sys.modules[module], name).__mro__
    }


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_the_check_that_is_meant_for_a_mutant_fails_it_in_the_expected_way(verdicts, mutant):
    verdict, kind, message, triggered = verdicts[mutant.target, mutant.intended, mutant.scenario]
    assert (verdict, kind) == ("fail", str(mutant.kind)), message
    assert triggered


@pytest.mark.parametrize("check", CHECKS)
def test_the_reference_passes(verdicts, check):
    verdict, _, message, _ = verdicts["reference", check, "fork"]
    assert verdict == "pass", message


@pytest.mark.parametrize("mutant", [each for each in MUTANTS if is_small(each)], ids=lambda mutant: mutant.id)
def test_the_small_pool_without_the_bug_passes_the_check_that_fails_it_with_the_bug(verdicts, mutant):
    verdict, _, message, _ = verdicts[SMALL_POOL, mutant.intended, "fork"]
    assert verdict == "pass", message


@pytest.mark.parametrize("control", controls("ipc"), ids=lambda control: control.id)
def test_an_unusual_pool_that_is_right_passes(verdicts, control):
    verdict, _, message, _ = verdicts[control.target, "ipc/drain", control.scenarios[0]]
    assert verdict == "pass", message


def test_every_check_has_a_mutant():
    assert {mutant.intended for mutant in MUTANTS} == set(CHECKS)


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_states_its_requirement_in_a_sentence(check):
    declared = load_checks()[check]
    assert declared.level in declared.sentence
    assert declared.sentence.endswith(".")
