"""The fit finds the law that made the figures, and says when there is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import UsageError
from harness.memory.law import Sample, fit

KIB, MIB = 1 << 10, 1 << 20
SHAPES = [(depth, width) for width in (1, 2, 3) for depth in (2, 5, 9)]


def figures(tensors, layers, noise=lambda place: 0):
    """Peaks that obey a law, of models whose largest tensor grows less than their layers do."""
    made = []
    for place, (depth, width) in enumerate(SHAPES):
        layer, largest = width**2 * 700 * KIB, width * 2 * MIB
        made.append(
            Sample(depth, layer, largest, round(tensors * largest + layers * layer * depth + noise(place)))
        )
    return made


coefficients = st.floats(0, 8)


@given(coefficients, coefficients)
def test_the_coefficients_of_a_law_are_found(tensors, layers):
    law = fit(figures(tensors, layers))
    assert law.tensors == pytest.approx(tensors, abs=1e-4)
    assert law.layers == pytest.approx(layers, abs=1e-4)
    assert law.layers_error < 1e-4


@given(coefficients, st.lists(st.integers(-8 * KIB, 8 * KIB), min_size=len(SHAPES), max_size=len(SHAPES)))
def test_noise_of_some_kilobytes_is_no_growth(tensors, noise):
    assert not fit(figures(tensors, 0, noise.__getitem__)).grows()


@given(coefficients, st.floats(0.2, 4))
def test_growth_is_seen_whatever_the_absolute_numbers(tensors, layers):
    assert fit(figures(tensors, layers)).grows()


@given(st.floats(1, 4), st.floats(0, 2))
def test_a_law_of_small_models_predicts_a_large_one(tensors, layers):
    law = fit(figures(tensors, layers))
    large = law.predict(depth=80, layer_bytes=1_700 * MIB, largest_bytes=2_000 * MIB)
    assert large == pytest.approx(tensors * 2_000 * MIB + layers * 1_700 * MIB * 80, rel=1e-3, abs=MIB)


def test_figures_that_obey_no_law_prove_nothing_for_a_source():
    erratic = fit(figures(1, 0, lambda place: (place % 2) * 12 * MIB))
    assert erratic.layers_error > 0.1
    assert erratic.grows()


@pytest.mark.parametrize("count", [0, 2])
def test_too_few_samples_are_refused(count):
    with pytest.raises(UsageError, match=f"at least 3 samples of 2 depths, got {count}"):
        fit(figures(1, 0)[:count])


def test_one_depth_is_refused():
    with pytest.raises(UsageError, match="of 2 depths, got 3 of 1"):
        fit([sample for sample in figures(1, 0) if sample.depth == 2])


def test_a_model_without_layers_is_refused():
    with pytest.raises(UsageError, match="is not positive"):
        fit([*figures(1, 0), Sample(0, MIB, MIB, MIB)])


def test_a_law_is_a_sentence():
    assert str(fit(figures(1.5, 1))) == (
        "peak = 1.50 x the largest tensor + 1.00 x a layer for each layer"
        " (± 0.00; 9 models of 2 to 9 layers and 3 widths)"
    )
