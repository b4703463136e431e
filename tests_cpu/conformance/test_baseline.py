"""Known failures: only what changed fails the run, and a stale entry fails it too."""

import tomllib

import pytest

from harness.conformance import baseline
from harness.conformance.verdict import Cell, Kind, Verdict
from harness.errors import UsageError

ENTRY = {
    "check": "sync/peak",
    "subject": "trl",
    "scenario": "*zero3*",
    "kind": "over-bound",
    "reason": "r",
    "link": "l",
}
FAILS = Cell(
    "sync/peak", "trl", "llama-lora-zero3x2-bf16", Verdict.FAIL, Kind.OVER_BOUND, 'says "so"\nand more'
)
PASSES = Cell("sync/peak", "trl", "llama-lora-zero3x2-bf16", Verdict.PASS)


def known(**changes):
    return baseline.Known(**{**ENTRY, **changes})


def test_a_known_failure_is_no_surprise():
    assert baseline.compare([FAILS], [known()]) == []


def test_an_unknown_failure_is():
    (surprise,) = baseline.compare([FAILS], [])
    assert "not in the baseline" in surprise


def test_an_unexpected_pass_is():
    (surprise,) = baseline.compare([PASSES], [known()])
    assert "remove it" in surprise


def test_another_kind_is():
    (surprise,) = baseline.compare([FAILS], [known(kind="hang")])
    assert "expected to fail with hang, fails with over-bound" in surprise


def test_an_entry_that_matches_nothing_is():
    (surprise,) = baseline.compare([], [known()])
    assert "matches no cell" in surprise


def test_a_first_baseline_is_toml_that_covers_the_run(tmp_path):
    text = baseline.first([FAILS, PASSES])
    place = tmp_path / "known.toml"
    place.write_text(text)
    assert len(tomllib.loads(text)["known"]) == 1
    assert baseline.compare([FAILS], baseline.read(place)) == []


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("known = 3", r"expected \[\[known\]\] tables only"),
        ("[[other]]\na = 1", r"expected \[\[known\]\] tables only"),
        ("not toml", "is not TOML"),
        ('[[known]]\ncheck = "a"', "missing or empty: subject"),
        (
            "\n".join(["[[known]]", *(f'{k} = "{v}"' for k, v in {**ENTRY, "kind": "odd"}.items())]),
            "unknown kind 'odd'",
        ),
        ("\n".join(["[[known]]", *(f'{k} = "{v}"' for k, v in {**ENTRY, "x": "y"}.items())]), "unknown: x"),
        (
            "\n".join(["[[known]]", *(f'{k} = "{v}"' for k, v in {**ENTRY, "reason": " "}.items())]),
            "missing or empty",
        ),
    ],
)
def test_a_bad_baseline_is_a_sentence(tmp_path, text, sentence):
    place = tmp_path / "known.toml"
    place.write_text(text)
    with pytest.raises(UsageError, match=sentence):
        baseline.read(place)


def test_a_missing_baseline_is_a_sentence(tmp_path):
    with pytest.raises(UsageError, match="cannot read the baseline"):
        baseline.read(tmp_path / "none.toml")
