"""The same checks as on CPU, on a device: the reference passes them all, and each mutant is still caught."""

import json
import subprocess
import sys

import pytest
from place import DEVICE, DRY

from harness.conformance.check import load_checks


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
    command += ["--device", DEVICE, "--only", "sync/*", "--json", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1500, stdin=subprocess.DEVNULL)
    assert place.exists(), done.stdout + done.stderr
    return json.loads(place.read_text())["cells"]


@pytest.mark.timeout(1560)
def test_the_reference_holds_every_requirement_on_the_device(cells):
    judged = [cell for cell in cells if cell["subject"] == "reference"]
    assert len(judged) > 50
    assert {cell["check"] for cell in judged} == {name for name in load_checks() if name.startswith("sync/")}
    assert all(cell["scenario"].endswith("-cuda") for cell in judged) or DRY
    assert [cell for cell in judged if cell["verdict"] != "pass"] == []


@pytest.mark.timeout(1560)
@pytest.mark.parametrize("check", ["sync/peak", "sync/scale"])
def test_the_full_gather_is_over_the_bound_on_the_device(cells, check):
    peaks = [
        c for c in cells if (c["subject"], c["check"]) == ("full-gather", check) and "zero3" in c["scenario"]
    ]
    assert peaks
    assert {cell["kind"] for cell in peaks} == {"over-bound"}
