"""How reports become cells: one place decides what every outcome means."""

from types import SimpleNamespace

import pytest

from harness.conformance.check import Check
from harness.conformance.plugin import EVIDENCE, NOT_APPLICABLE, NOT_RUN, VIOLATION, CellKey
from harness.conformance.recorder import judge, reproduce
from harness.conformance.run import exit_status
from harness.conformance.sync.scenarios import SyncScenario
from harness.conformance.verdict import Cell, Kind, Verdict
from harness.ranks.outcome import RankOutcome
from harness.subjects import resolve

SCENARIO = SyncScenario("llama", "lora", "zero3", 2, "bf16")
KEY = CellKey(Check("sync/peak", "MUST", "A sentence.", "0.1"), resolve("trl"), SCENARIO, (0,))
DRIFT = {"kind": "drift", "message": "the bytes changed", "where": "x.py:1"}


def report(outcome="passed", when="call", properties=(), ranks=(), longrepr=None):
    made = pytest.TestReport(
        "n", ("f", 0, "n"), {}, outcome, longrepr, when, user_properties=list(properties)
    )
    made.ranks = list(ranks)
    made.duration = 0.25
    return made


def test_a_body_that_passes_is_a_pass_with_its_evidence_and_time():
    cell = judge(
        KEY, [report(when="setup"), report(properties=[(EVIDENCE, {"n": 3})]), report(when="teardown")]
    )
    assert (cell.verdict, cell.kind, cell.evidence, cell.seconds) == (Verdict.PASS, None, {"n": 3}, 0.75)


def test_a_violation_is_a_failure_of_its_kind():
    cell = judge(KEY, [report("failed", properties=[(VIOLATION, DRIFT), (EVIDENCE, {})])])
    assert (cell.verdict, cell.kind, cell.message) == (Verdict.FAIL, Kind.DRIFT, "the bytes changed")


def test_the_evidence_is_that_of_the_rank_that_saw_the_violation():
    properties = [(EVIDENCE, {"rank": 0}), (VIOLATION, DRIFT), (EVIDENCE, {"rank": 1})]
    assert judge(KEY, [report("failed", properties=properties)]).evidence == {"rank": 1}


def test_an_undeclared_capability_is_not_applicable():
    cell = judge(KEY, [report("skipped", properties=[(NOT_APPLICABLE, "no metadata()")])])
    assert (cell.verdict, cell.message) == (Verdict.NOT_APPLICABLE, "no metadata()")


def test_a_missing_prerequisite_is_not_run():
    cell = judge(KEY, [report("skipped", properties=[(NOT_RUN, "deepspeed not installed")])])
    assert (cell.verdict, cell.message) == (Verdict.NOT_RUN, "deepspeed not installed")


def test_a_rank_stuck_in_the_subject_is_a_hang():
    stack = 'File ".../harness/conformance/sync/subject.py", line 60 in stream'
    outcome = RankOutcome(1, "stuck", "at all_reduce", stack=stack)
    cell = judge(KEY, [report("failed", ranks=[outcome], longrepr="Failed: timeout")])
    assert (cell.verdict, cell.kind) == (Verdict.FAIL, Kind.HANG)
    assert "rank 1" in cell.message


def test_a_rank_stuck_in_our_own_code_is_our_error():
    outcome = RankOutcome(
        1, "stuck", "at build.py:1", stack='File "harness/conformance/sync/build.py", line 1'
    )
    cell = judge(KEY, [report("failed", ranks=[outcome], longrepr="Failed: timeout")])
    assert (cell.verdict, cell.kind) == (Verdict.ERROR, None)


def test_a_rank_that_died_speaks_against_the_subject():
    outcome = RankOutcome(0, "died", "died (SIGKILL)", exit_status=-9)
    cell = judge(KEY, [report("failed", ranks=[outcome], longrepr="Failed: died")])
    assert (cell.verdict, cell.kind) == (Verdict.FAIL, Kind.DIED)
    assert "SIGKILL" in cell.message


def test_any_other_failure_is_our_error_with_its_text():
    cell = judge(KEY, [report("failed", when="setup", longrepr="E   KeyError: 'x'")])
    assert (cell.verdict, cell.message) == (Verdict.ERROR, "E   KeyError: 'x'")


def test_an_item_without_a_report_of_its_body_is_our_error():
    assert judge(KEY, []).verdict is Verdict.ERROR
    assert judge(KEY, [report(when="setup")]).verdict is Verdict.ERROR


def test_the_command_that_reproduces_names_check_scenario_and_device():
    assert reproduce(KEY) == "harness check trl --only sync/peak --scenario llama-lora-zero3x2-bf16"
    cuda = SyncScenario("llama", "lora", "zero3", 2, "bf16", "cuda")
    key = SimpleNamespace(subject=KEY.subject, check=KEY.check, scenario=cuda)
    assert reproduce(key).endswith("--scenario llama-lora-zero3x2-bf16-cuda --device cuda")


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        ([Verdict.PASS, Verdict.NOT_APPLICABLE], 0),
        ([Verdict.PASS, Verdict.FAIL], 1),
        ([Verdict.FAIL, Verdict.ERROR], 3),
        ([Verdict.NOT_APPLICABLE, Verdict.NOT_RUN], 1),  # nothing exercised is never a success
        ([], 1),
    ],
)
def test_exit_status(verdicts, status):
    kinds = {Verdict.FAIL: Kind.WRONG}
    assert exit_status([Cell("c", "s", "x", v, kinds.get(v)) for v in verdicts]) == status
