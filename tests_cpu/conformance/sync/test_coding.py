"""What arrives wrong is told apart by its codes."""

import pytest
import torch

from harness.conformance.sync.coding import code, explain
from harness.conformance.sync.oracle import Target

RANKS, SHAPE = 2, (6, 10)


class Values(dict):
    """Exact values by name."""

    @property
    def values(self):
        return self


def due(turn, names=("a.weight", "b.weight")):
    values = {name: code(name, SHAPE, turn, RANKS) for name in names}
    exact = Values({name: value.double() for name, value in values.items()})
    return {name: Target(name, value, value - 1, True, exact) for name, value in values.items()}


def test_codes_are_exact_in_half_precision_and_never_zero():
    coded = code("w", (64, 64), 1, 2)
    assert torch.equal(coded, coded.bfloat16().float())
    assert bool((coded != 0).all())


def test_a_code_depends_on_name_round_place_and_rank():
    first = code("w", SHAPE, 1, RANKS)
    assert not torch.equal(first, code("v", SHAPE, 1, RANKS))
    assert not torch.equal(first, code("w", SHAPE, 2, RANKS))
    assert not torch.equal(first, code("w", SHAPE, 1, 1))
    assert not torch.equal(first[:3], first[3:])


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda now, before: before["a.weight"].merged, "still holds the value of the round before"),
        (lambda now, before: now["b.weight"].merged, "holds what belongs to b.weight"),
        (lambda now, before: now["a.weight"].base, "arrived without its adapter"),
        (
            lambda now, before: torch.cat([now["a.weight"].merged[3:], now["a.weight"].merged[:3]]),
            "in the part of rank 0, which holds that of rank 1: swapped",
        ),
        (
            lambda now, before: torch.cat([now["a.weight"].merged[:3], torch.zeros(3, 10)]),
            "in the part of rank 1, which is all zero: dropped",
        ),
        (
            lambda now, before: (
                now["a.weight"]
                .merged.clone()
                .index_put_((torch.tensor(4), torch.tensor(2)), torch.tensor(9.0))
            ),
            "in 1 of 60 elements, the first at place 42 of the flattened tensor (rank 1)",
        ),
    ],
)
def test_the_fault_is_named(spoil, words):
    now, before = due(turn=1), due(turn=0)
    assert words in explain("a.weight", spoil(now, before), now, before, RANKS)
