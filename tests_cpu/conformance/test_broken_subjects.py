"""Whatever a subject does, the run ends in time, with a cell that says what it did; others are judged all the same."""

import json
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.timeout(320)

PLAIN = "llama-lora-replicated-fp32"
BROKEN = textwrap.dedent("""
    import os, signal, threading

    def hangs(model, context):
        yield "a", next(model.parameters())
        threading.Event().wait()

    def dies(model, context):
        os.kill(os.getpid(), signal.SIGKILL)

    def exits(model, context):
        os._exit(0)

    def answers_with_a_number(model, context):
        return 7

    def names_are_numbers(model, context):
        yield 3, next(model.parameters())

    def cannot(model, context):
        raise AssertionError("must not be called")

    cannot.supports = lambda scenario: "only FSDP"
""")
NAMES = ("hangs", "dies", "exits", "answers_with_a_number", "names_are_numbers", "cannot")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("broken")
    (folder / "broken.py").write_text(BROKEN)
    command = [sys.executable, "-c", "from harness.cli import main; main()", "check", "reference"]
    command += [f"broken:{name}" for name in NAMES]
    command += [
        "--only",
        "sync/names",
        "--scenario",
        PLAIN,
        "--device",
        "cpu",
        "--deadline",
        "8",
        "--json",
        "run.json",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL
    )
    assert (folder / "run.json").exists(), done.stdout + done.stderr
    return done, json.loads((folder / "run.json").read_text())["cells"]


def cell(cells, name, check="sync/smoke"):
    (found,) = [c for c in cells if c["subject"] == name and c["check"] == check]
    return found


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("hangs", "hang", "did not end within its deadline"),
        ("dies", "died", "SIGKILL"),
        ("exits", "died", "exit"),
        ("answers_with_a_number", "broken-adapter", "expected a WeightSource or an iterable"),
        ("names_are_numbers", "broken-adapter", "expected (str, torch.Tensor), got (int, Parameter)"),
    ],
)
def test_a_broken_subject_is_named_as_what_it_is(run, name, kind, words):
    _, cells = run
    smoke = cell(cells, f"broken:{name}")
    assert (smoke["verdict"], smoke["kind"]) == ("fail", kind), smoke
    assert words in smoke["message"]


def test_a_broken_subject_is_judged_no_further(run):
    _, cells = run
    later = cell(cells, "broken:hangs", "sync/names")
    assert later["verdict"] == "not-run"
    assert "sync/smoke did not pass" in later["message"]


def test_a_subject_that_declines_a_scenario_is_not_applicable(run):
    _, cells = run
    assert cell(cells, "broken:cannot")["verdict"] == "n/a"
    assert cell(cells, "broken:cannot")["message"] == "only FSDP"


def test_declining_the_scenario_of_the_smoke_stage_is_no_failure_of_it(run):
    _, cells = run
    assert cell(cells, "broken:cannot", "sync/names")["verdict"] == "n/a"


def test_the_subjects_beside_it_are_judged_all_the_same(run):
    done, cells = run
    assert cell(cells, "reference", "sync/names")["verdict"] == "pass"
    assert done.returncode == 1


def test_nothing_of_ours_is_printed_as_a_traceback(run):
    done, _ = run
    assert "Traceback" not in done.stdout + done.stderr
