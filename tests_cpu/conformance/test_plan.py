"""What a run consists of, and the sentence for everything that does not exist."""

import pytest

from harness.conformance.check import DOMAINS, check, check_of, load_checks
from harness.conformance.plan import Request, plan
from harness.conformance.scenario import domain
from harness.conformance.sync.adapters import CARRIES
from harness.conformance.sync.scenarios import ADAPTERS, DTYPES, SHARDINGS
from harness.errors import HarnessError, MissingLibrary, UsageError


def test_every_check_has_a_permanent_id_a_sentence_and_a_smoke_stage_before_it():
    checks = load_checks().values()
    assert all(c.domain in DOMAINS and c.sentence.endswith(".") and c.since for c in checks)
    assert {c.domain for c in checks if c.smoke} == {c.domain for c in checks}
    assert all(c.level in c.sentence for c in checks)


def test_a_run_begins_with_smoke_and_keeps_scenarios_together():
    cells = plan(Request(("reference", "full-gather"), ("sync/*",), device="cpu")).cells
    smoke = [key.check.smoke for key in cells]
    assert smoke == sorted(smoke, reverse=True)
    assert [key.subject.name for key in cells[:2]] == ["reference", "full-gather"]
    order = [key.scenario.id for key in cells if not key.check.smoke]
    assert order == sorted(order, key=order.index)


def test_the_default_set_is_part_of_the_full_one_and_meets_every_adapter_on_every_sharding():
    for name in ("sync",):
        default, full = domain(name).default("cpu"), domain(name).full("cpu")
        assert set(default) < set(full)
        places = lambda scenarios: {(s.adapter, s.sharding, s.world_size) for s in scenarios}  # noqa: E731
        wanted = {
            (a, p, n)
            for a in ("lora", "policy", "dora")
            for p, n in (("replicated", 1), ("zero3", 1), ("zero3", 2))
        }
        assert wanted <= places(default)


def test_in_the_full_set_every_two_values_that_a_trainer_can_have_meet():
    full = domain("sync").full("cpu")
    for model, adapters in CARRIES.items():
        assert {s.adapter for s in full if s.model == model} == set(adapters)
        assert {(s.sharding, s.world_size) for s in full if s.model == model} == set(SHARDINGS)
    for place in SHARDINGS:
        met = [s for s in full if (s.sharding, s.world_size) == place]
        assert {s.adapter for s in met} == set(ADAPTERS)
        assert {s.dtype for s in met} == set(DTYPES) - ({"mixed"} if place[0] == "fsdp2" else set())


def test_scenario_ids_are_unique_and_readable():
    ids = [s.id for s in domain("sync").full("cpu")]
    assert len(ids) == len(set(ids))
    assert "llama-dora-zero3x2-bf16" in ids


def test_a_check_runs_after_smoke_even_when_asked_for_alone():
    cells = plan(Request(("reference",), ("sync/peak",), ("llama-lora-zero3x2-bf16",), device="cpu")).cells
    assert [(key.check.id, key.scenario.id) for key in cells] == [
        ("sync/smoke", "llama-lora-zero3x2-bf16"),
        ("sync/peak", "llama-lora-zero3x2-bf16"),
    ]


def test_exactly_the_cells_that_are_named():
    asked = (
        ("reference", "sync/names", "llama-lora-replicated-fp32"),
        ("full-gather", "sync/peak", "llama-lora-zero3x1-bf16"),
    )
    cells = plan(Request((), cells=asked, device="cpu")).cells
    assert {(k.subject.name, k.check.id, k.scenario.id) for k in cells} == set(asked)


@pytest.mark.parametrize(
    ("request_", "sentence"),
    [
        (Request(()), "name at least one subject"),
        (Request(("refrence",)), r"unknown subject 'refrence': expected one of .*Did you mean 'reference'"),
        (Request(("reference",), ("sync/peek",)), r"unknown check 'sync/peek'.*Did you mean 'sync/peak'"),
        (Request(("reference",), (), ("llama-*-fp8",)), r"unknown scenario 'llama-\*-fp8'"),
        (Request(("reference",), device="tpu"), "unknown device 'tpu': expected one of auto, cpu, cuda"),
        (Request(("reference",), worlds=(17,), device="cpu"), "nothing to run: no scenario matches"),
        (Request(("reference",), deadline=0), "expected more than 0"),
        (
            Request(("no_such_module_here:f",), device="cpu"),
            "importing no_such_module_here raised ModuleNotFoundError",
        ),
        (Request(("json:nothing",), device="cpu"), "json has no attribute 'nothing'"),
        (Request(("json:__name__",), device="cpu"), "expected a callable .*got str"),
    ],
)
def test_what_does_not_exist_is_one_clear_sentence(request_, sentence):
    with pytest.raises(UsageError, match=sentence) as error:
        plan(request_)
    assert "\n" not in str(error.value)


def test_a_subject_whose_library_is_missing_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr("harness.subjects.registry.find_spec", lambda name: None)
    with pytest.raises(MissingLibrary, match=r"trl is not installed.*pip install 'lockstep-harness\[trl\]'"):
        plan(Request(("trl",), device="cpu"))


def test_a_module_that_ends_its_process_on_import_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "leaves_at_once.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"ended the process \(exit status 7\)"):
        plan(Request(("leaves_at_once:f",), device="cpu"))


def test_a_module_that_never_imports_is_a_sentence(tmp_path, monkeypatch):
    (tmp_path / "never_imports.py").write_text("import threading\nthreading.Event().wait()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("harness.subjects.probe.DEADLINE", 3.0)
    with pytest.raises(UsageError, match="did not import within 3 s"):
        plan(Request(("never_imports:f",), device="cpu"))


def test_a_check_is_declared_with_exactly_one_level():
    with pytest.raises(HarnessError, match="exactly one of must= and should="):
        check("sync/none", since="0.1")
    with pytest.raises(HarnessError, match="exactly one of must= and should="):
        check("sync/both", must="a", should="b", since="0.1")


def test_a_check_id_is_declared_once():
    with pytest.raises(HarnessError, match="declared twice"):
        check("sync/peak", must="Something else MUST hold.", since="0.1")(lambda: None)
    assert check_of(lambda: None) is None
