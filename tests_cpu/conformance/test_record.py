"""The record of a run follows its published schema, and everything that people see follows the record."""

import io
import json

import jsonschema
import pytest
from rich.console import Console

from harness.conformance import record
from harness.conformance.environment import environment
from harness.conformance.scoreboard import scoreboard
from harness.conformance.verdict import Cell, Kind, Verdict
from harness.errors import UsageError

PEAK = {"peak_bytes": 17 << 20, "bound_bytes": 6 << 20, "largest_bytes": 2 << 20, "model_bytes": 12 << 20}
CELLS = [
    Cell(
        "sync/peak",
        "reference",
        "llama-lora-zero3x2-bf16",
        Verdict.PASS,
        evidence={**PEAK, "peak_bytes": 4 << 20},
    ),
    Cell(
        "sync/peak",
        "trl",
        "llama-lora-zero3x2-bf16",
        Verdict.FAIL,
        Kind.OVER_BOUND,
        "peak 17.0 MiB, bound 6.0 MiB",
        {
            **PEAK,
            "top": [{"site": "gather (/x/site-packages/deepspeed/zero.py:7)", "bytes": 1}],
            "worst": float("inf"),
        },
        1.5,
        "harness check trl --only sync/peak --scenario llama-lora-zero3x2-bf16",
        "a traceback",
    ),
    Cell("sync/metadata", "trl", "llama-lora-zero3x2-bf16", Verdict.NOT_APPLICABLE, message="no metadata()"),
]


def printed(cells, width=140):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(scoreboard(cells, environment("cpu")))
    return console.export_text()


def test_a_record_follows_the_published_schema(tmp_path):
    place = tmp_path / "run.json"
    record.write(place, record.record(CELLS, environment("cpu")))
    document = json.loads(place.read_text())
    jsonschema.validate(document, record.schema())
    assert document["schema"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


def test_the_schema_refuses_a_failure_without_a_kind():
    document = record.record(CELLS, environment("cpu"))
    document["cells"][1]["kind"] = None
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, record.schema())


def test_cells_survive_the_way_through_json():
    document = json.loads(json.dumps(record.record(CELLS, environment("cpu"))))
    back = record.cells_of(document)
    assert [(c.verdict, c.kind, c.message) for c in back] == [(c.verdict, c.kind, c.message) for c in CELLS]
    assert back[1].evidence["worst"] == "inf"


def test_a_record_that_cannot_be_written_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"cannot write .*: No such file"):
        record.write(tmp_path / "nowhere" / "run.json", {})


def test_the_scoreboard_shows_verdict_figures_and_who_allocated():
    text = printed(CELLS)
    assert "fail 1/1" in text
    assert "over-bound" in text
    assert "peak 17.0 MiB, bound 6.0 MiB, model 12.0 MiB" in text
    assert "held by gather deepspeed/zero.py:7" in " ".join(text.replace("│", " ").split())


def test_a_failure_comes_with_its_command_and_its_public_reports():
    text = printed(CELLS)
    assert "harness check trl --only sync/peak --scenario llama-lora-zero3x2-bf16" in text
    assert "public reports of this kind: trl#3133" in text


def test_counts_share_one_denominator_and_are_no_percentage():
    text = printed(CELLS)
    assert "trl: 1 fail, 1 n/a of 2 cells" in text
    assert "%" not in text
