"""Every engine check but one is seen to fail: on the server that runs, with one known bug put into it."""

import importlib

import pytest

from harness.conformance.check import load_checks
from harness.conformance.engine import CHECK_MODULES
from harness.conformance.engine.scenarios import SINGLE, EngineScenario
from harness.conformance.sync.scenarios import SyncScenario
from harness.conformance.verdict import Violation
from harness.zoo.engine import MUTANTS

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(900)]

BRIEF = {"ROUNDS": 4, "REQUEST_S": 2.0, "TRUTH_S": 1.0, "ORPHANS_S": 1.0}
"""A bug shows in the first rounds and seconds."""


@pytest.fixture(scope="session")
def functions():
    """The function of each check, by its id."""
    modules = [importlib.import_module(f"harness.conformance.engine.{name}") for name in CHECK_MODULES]
    return {
        each.harness_check.id: (each, module)
        for module in modules
        for each in vars(module).values()
        if hasattr(each, "harness_check")
    }


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=lambda mutant: f"{mutant.intended.partition('/')[2]}-{mutant.name}"
)
def test_the_check_meant_for_a_bug_fails_it(mutant, on_stage, functions, monkeypatch):
    check, module = functions[mutant.intended]
    for name, brief in BRIEF.items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, brief)
    cell = on_stage(EngineScenario(SyncScenario("llama", "lora", "zero3", 2, "bf16"), SINGLE))
    with mutant.spoil(cell) as spoilt, pytest.raises(Violation) as raised:
        check(engine=spoilt)
    assert raised.value.kind == mutant.kind


def test_every_check_but_the_one_that_vllm_fails_has_its_mutant():
    checks = {check.id for check in load_checks().values() if check.domain == "engine"}
    assert checks - {mutant.intended for mutant in MUTANTS} == {"engine/empty-update"}
