"""The first screen of the README, as a test: what holds for the reference and for the TRL that is installed here.

If TRL mends one of these, the test fails, and the README, the findings and this expectation change together.
"""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

SCENARIOS = ("llama-lora-zero3x2-bf16", "llama-lora-zero3x1-bf16", "tiedllama-policy-replicated-bf16")


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    place = tmp_path_factory.mktemp("scoreboard") / "run.json"
    command = [sys.executable, "-c", "from harness.cli import main; main()", "check", "reference", "trl"]
    command += ["--device", "cpu", "--json", str(place), "--only", "sync/*"]
    for scenario in SCENARIOS:
        command += ["--scenario", scenario]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)
    assert place.exists(), done.stdout + done.stderr
    assert done.returncode == 1
    return json.loads(place.read_text())["cells"]


def one(cells, subject, check, scenario):
    (found,) = [c for c in cells if (c["subject"], c["check"], c["scenario"]) == (subject, check, scenario)]
    return found


@pytest.mark.timeout(300)
def test_the_reference_passes_everything(cells):
    judged = [c for c in cells if c["subject"] == "reference"]
    assert len(judged) > 20
    assert [c for c in judged if c["verdict"] != "pass"] == []


def test_the_installed_trl_is_the_one_that_these_expectations_are_about():
    assert version("trl") == "1.16.0"


def test_trl_gathers_the_whole_model(cells):
    cell = one(cells, "trl", "sync/peak", "llama-lora-zero3x2-bf16")
    assert (cell["verdict"], cell["kind"]) == ("fail", "over-bound")
    assert cell["evidence"]["peak_bytes"] >= 0.9 * cell["evidence"]["model_bytes"]
    assert "_allgather_params_coalesced" in cell["message"]


def test_the_reference_stays_under_three_times_the_largest_tensor(cells):
    evidence = one(cells, "reference", "sync/peak", "llama-lora-zero3x2-bf16")["evidence"]
    assert evidence["peak_bytes"] < 3 * evidence["largest_bytes"]


def test_not_one_adapted_tensor_of_trl_arrives_merged_in_a_packed_transfer(cells):
    for scenario in ("llama-lora-zero3x2-bf16", "llama-lora-zero3x1-bf16"):
        cell = one(cells, "trl", "sync/stable-bytes", scenario)
        assert (cell["verdict"], cell["kind"]) == ("fail", "stale")
        assert cell["evidence"]["arrived_merged"]["packed_default"] == 0
        assert cell["evidence"]["adapted"] == 42
        assert "0 of 42 adapted tensors arrived merged" in cell["message"]


def test_trl_leaves_the_model_merged_when_a_round_is_abandoned(cells):
    for scenario in SCENARIOS:
        assert one(cells, "trl", "sync/abandon", scenario)["kind"] == "drift"


def test_trl_drifts_the_base_at_world_size_1_and_not_at_2(cells):
    assert one(cells, "trl", "sync/base", "llama-lora-zero3x1-bf16")["kind"] == "drift"
    assert one(cells, "trl", "sync/base", "llama-lora-zero3x2-bf16")["verdict"] == "pass"


def test_trl_leaks_the_name_of_an_adapter_that_is_not_called_default(cells):
    cell = one(cells, "trl", "sync/names", "tiedllama-policy-replicated-bf16")
    assert (cell["verdict"], cell["kind"]) == ("fail", "leaked-name")
    assert "modules_to_save.policy" in cell["message"]


def test_trl_declares_no_metadata_and_that_is_no_failure(cells):
    assert one(cells, "trl", "sync/metadata", "llama-lora-zero3x2-bf16")["verdict"] == "n/a"
