"""The same checks as on CPU, on a device: the reference passes them all, and each mutant is still caught."""

import json
import subprocess
import sys

import pytest


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    place = tmp_path_factory.mktemp("gpu") / "run.json"
    command = [
        sys.executable,
        "-c",
        "from harness.cli import main; main()",
        "check",
        "reference",
        "full-gather",
    ]
    command += ["--device", "cuda", "--only", "sync/*", "--json", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, stdin=subprocess.DEVNULL)
    assert place.exists(), done.stdout + done.stderr
    return json.loads(place.read_text())["cells"]


@pytest.mark.timeout(960)
def test_the_reference_holds_every_requirement_on_the_device(cells):
    judged = [cell for cell in cells if cell["subject"] == "reference"]
    assert len(judged) > 50
    assert all(cell["scenario"].endswith("-cuda") for cell in judged)
    assert [cell for cell in judged if cell["verdict"] != "pass"] == []


@pytest.mark.timeout(960)
def test_the_full_gather_is_over_the_bound_on_the_device(cells):
    peaks = [
        c
        for c in cells
        if (c["subject"], c["check"]) == ("full-gather", "sync/peak") and "zero3" in c["scenario"]
    ]
    assert peaks
    assert {cell["kind"] for cell in peaks} == {"over-bound"}
