"""Bytes gate, seconds do not."""

import pytest

from harness.errors import UsageError
from harness.records.memory_baseline import accept, compare, figures_of, read

MIB = 1 << 20
RUN = {"bench": {"peak_bytes": [100 * MIB, 20 * MIB]}}


def changed(*values):
    return {"bench": {"peak_bytes": list(values)}}


def test_only_figures_in_bytes_take_part():
    extra = {"peak_bytes": [1, 2], "largest_bytes": 7, "of_trl": 0.4, "seconds": 3}
    assert figures_of({"a": extra, "b": {"seconds": 1}}) == {
        "a": {"peak_bytes": [1, 2], "largest_bytes": [7]}
    }


def test_the_same_figures_are_no_difference():
    assert compare(RUN, RUN).regressions == compare(RUN, RUN).improvements == ()


def test_growth_beyond_the_tolerance_is_a_regression_on_its_rank():
    (sentence,) = compare(changed(100 * MIB, 21 * MIB), RUN).regressions
    assert "peak_bytes on rank 1" in sentence


def test_growth_within_the_tolerance_is_not():
    assert compare(changed(102 * MIB, 20 * MIB + 300_000), RUN).regressions == ()


def test_much_less_is_an_improvement_and_no_failure():
    difference = compare(changed(50 * MIB, 20 * MIB), RUN)
    assert difference.regressions == ()
    assert "baseline 104857600" in difference.improvements[0]


def test_a_figure_without_a_baseline_fails():
    assert "has no baseline" in compare(RUN, {}).regressions[0]
    assert "has no baseline" in compare(changed(1), RUN).regressions[0]


def test_accepted_figures_are_read_back_and_the_others_kept(tmp_path):
    place = tmp_path / "baseline.json"
    assert read(place) == {}
    accept(place, RUN, "first")
    accept(place, {"other": {"peak_bytes": [1]}}, "second")
    assert read(place) == {**RUN, "other": {"peak_bytes": [1]}}
    assert '"first"' in place.read_text()


def test_accepting_without_a_reason_is_refused(tmp_path):
    with pytest.raises(UsageError, match="say why"):
        accept(tmp_path / "baseline.json", RUN, " ")


def test_a_file_that_is_no_baseline_is_a_sentence(tmp_path):
    place = tmp_path / "baseline.json"
    place.write_text("[]")
    with pytest.raises(UsageError, match="is no baseline of bytes"):
        read(place)
