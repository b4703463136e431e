"""Every check has been seen to fail on the mutant that is meant for it, and to pass the controls."""

import json
import subprocess
import sys

import jsonschema
import pytest

from harness.conformance.check import load_checks
from harness.conformance.record import schema
from harness.zoo import controls, mutants

pytestmark = pytest.mark.timeout(600)

SYNC = [mutant.id for mutant in mutants("sync")]


@pytest.fixture(scope="module")
def visit(tmp_path_factory):
    place = tmp_path_factory.mktemp("zoo") / "zoo.json"
    command = [
        sys.executable,
        "-c",
        "from harness.cli import main; main()",
        "zoo",
        "--family",
        "sync",
        "--intended",
    ]
    done = subprocess.run([*command, "--json", str(place)], capture_output=True, text=True, timeout=580)
    assert place.exists(), done.stdout + done.stderr
    return done, json.loads(place.read_text())


@pytest.mark.parametrize("name", SYNC)
def test_the_intended_check_kills_the_mutant(visit, name):
    _, document = visit
    (entry,) = [each for each in document["mutants"] if each["id"] == name]
    cells = [c for c in document["cells"] if c["subject"].endswith(name.rpartition("/")[2].replace("-", "_"))]
    assert entry["outcome"] == "killed", [(c["check"], c["verdict"], c["kind"], c["message"]) for c in cells]
    assert entry["triggered"]


@pytest.mark.parametrize(
    ("name", "check", "last"),
    [
        ("drifts_on_one_rank", "sync/base", "differences_after_10"),
        ("drifts_on_one_rank_when_given_up", "sync/abandon", "wrong_in_next_round"),
        ("gives_the_reason_on_one_rank", "sync/refuses", "told"),
    ],
)
def test_a_rank_that_finds_something_takes_part_to_the_end(visit, name, check, last):
    """Or the others would wait for it in a collective until the deadline, and the pool would be lost."""
    _, document = visit
    (cell,) = [c for c in document["cells"] if c["subject"].endswith(f":{name}") and c["check"] == check]
    assert last in cell["evidence"]


@pytest.mark.parametrize("name", [control.id for control in controls("sync")])
def test_no_check_flags_a_control(visit, name):
    done, document = visit
    (entry,) = [each for each in document["controls"] if each["id"] == name]
    assert entry["outcome"] == "passed", done.stdout


def test_every_check_has_a_mutant():
    without = {c.id for c in load_checks().values() if c.domain == "sync"} - {
        m.intended for m in mutants("sync")
    }
    assert not without


@pytest.mark.parametrize("control", controls(), ids=lambda control: control.id)
def test_a_control_tempts_checks_of_its_family_that_are_about_its_scenarios(control):
    of_family = {c.id: c for c in load_checks().values() if c.domain == control.family}
    assert control.tempts
    for name in control.tempts:
        assert any(of_family[name].is_about(scenario) for scenario in control.scenarios), name


def test_the_record_of_a_visit_follows_the_schema_and_the_exit_status_says_that_none_survived(visit):
    done, document = visit
    jsonschema.validate(document, schema())
    assert done.returncode == 0, done.stdout[-3000:]
