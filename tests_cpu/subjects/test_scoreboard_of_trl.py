"""The first screen of the README, as a test: what holds for the reference and for the TRL that is installed here.

If TRL mends one of these, the test fails, and the README, the findings and this expectation change together.
"""

from importlib.metadata import version

import pytest

from harness.conformance.plan import Request, plan

TWO, ONE, TIED = "llama-lora-zero3x2-bf16", "llama-lora-zero3x1-bf16", "tiedllama-policy-replicated-bf16"
OF_TRL = (
    *[(check, TWO) for check in ("sync/peak", "sync/stable-bytes", "sync/base", "sync/metadata")],
    *[(check, ONE) for check in ("sync/stable-bytes", "sync/base")],
    *[("sync/abandon", scenario) for scenario in (TWO, ONE, TIED)],
    ("sync/names", TIED),
)

pytestmark = pytest.mark.timeout(500)


@pytest.fixture(scope="module")
def cells(judged):
    wanted = plan(Request(("reference",), checks=("sync/*",), scenarios=(TWO, ONE, TIED), device="cpu")).cells
    asked = [(key.subject.name, key.check.id, key.scenario.id) for key in wanted]
    return judged([*asked, *(("trl", *cell) for cell in OF_TRL)], timeout=480)


def test_the_reference_passes_everything(cells):
    of_reference = [c for c in cells.values() if c["subject"] == "reference"]
    assert len(of_reference) > 40
    assert [c for c in of_reference if c["verdict"] != "pass"] == []


def test_the_installed_trl_is_the_one_that_these_expectations_are_about():
    assert version("trl") == "1.16.0"


def test_trl_gathers_the_whole_model(cells):
    cell = cells["trl", "sync/peak", TWO]
    assert (cell["verdict"], cell["kind"]) == ("fail", "over-bound")
    assert cell["evidence"]["peak_bytes"] >= 0.9 * cell["evidence"]["model_bytes"]
    assert "_allgather_params_coalesced" in cell["message"]


def test_the_reference_stays_under_three_times_the_largest_tensor(cells):
    evidence = cells["reference", "sync/peak", TWO]["evidence"]
    assert evidence["peak_bytes"] < 3 * evidence["largest_bytes"]


def test_not_one_adapted_tensor_of_trl_arrives_merged_in_a_packed_transfer(cells):
    for scenario in (TWO, ONE):
        cell = cells["trl", "sync/stable-bytes", scenario]
        assert (cell["verdict"], cell["kind"]) == ("fail", "stale")
        assert cell["evidence"]["arrived_merged"]["packed_default"] == 0
        assert cell["evidence"]["adapted"] == 42
        assert "0 of 42 adapted tensors arrived merged" in cell["message"]


def test_trl_leaves_the_model_merged_when_a_round_is_abandoned(cells):
    for scenario in (TWO, ONE, TIED):
        assert cells["trl", "sync/abandon", scenario]["kind"] == "drift"


def test_trl_drifts_the_base_at_world_size_1_and_not_at_2(cells):
    assert cells["trl", "sync/base", ONE]["kind"] == "drift"
    assert cells["trl", "sync/base", TWO]["verdict"] == "pass"


def test_trl_leaks_the_name_of_an_adapter_that_is_not_called_default(cells):
    cell = cells["trl", "sync/names", TIED]
    assert (cell["verdict"], cell["kind"]) == ("fail", "leaked-name")
    assert "modules_to_save.policy" in cell["message"]


def test_trl_declares_no_metadata_and_that_is_no_failure(cells):
    assert cells["trl", "sync/metadata", TWO]["verdict"] == "n/a"
