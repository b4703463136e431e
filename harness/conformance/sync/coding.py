"""Tensors whose every element says where it belongs: in which parameter, at which place, on which rank, of which round.

An element's code is one of 251 values that half precision holds exactly; a run of elements tells its place by itself.
So what arrives can be read: a permutation, a swapped shard, a stale or a dropped tensor are told apart by name.
"""

from __future__ import annotations

import zlib
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.conformance.sync.oracle import Target

_VALUES = 251  # prime, and every integer up to it is exact in bfloat16


@lru_cache(maxsize=256)
def _scrambled(numel: int) -> torch.Tensor:
    """A number per place, without a period."""
    place = torch.arange(numel, dtype=torch.int64)
    mixed = (place * 2_654_435_761) & 0xFFFFFFFF
    return mixed ^ (mixed >> 15)


def code(name: str, shape: tuple[int, ...], turn: int, ranks: int) -> torch.Tensor:
    """The coded value of a parameter, float32, between -2 and 2, never 0.

    Args:
        name: of the parameter in the trainer's model.
        shape: full shape.
        turn: number of the round.
        ranks: how many ranks the flattened parameter is cut over.
    """
    numel = max(1, torch.Size(shape).numel())
    owner = torch.arange(numel) // -(-numel // ranks)
    seed = zlib.crc32(f"{name} in round {turn}".encode()) % 100_003
    number = (_scrambled(numel) + seed + owner * 101) % _VALUES
    return ((number - _VALUES // 2).float() + 0.5).div(64).view(shape)


def explain(
    name: str, got: torch.Tensor, now: Mapping[str, Target], before: Mapping[str, Target], ranks: int
) -> str:
    """What a tensor that arrived wrong is, as far as its codes tell.

    Args:
        name: under which it arrived.
        got: its value.
        now: what should have arrived in this round, by name.
        before: what was right in the round before.
        ranks: how many ranks the flattened tensor is cut over.
    """
    want = now[name]
    if got.shape != want.merged.shape:
        return f"{name} has shape {tuple(got.shape)} instead of {tuple(want.merged.shape)}"
    if before[name].error(got) <= 1.0:
        return f"{name} still holds the value of the round before"
    if want.is_unmerged(got):
        return f"{name} arrived without its adapter"
    for other, target in now.items():
        if other != name and target.merged.shape == got.shape and target.error(got) <= 1.0:
            return f"{name} holds what belongs to {other}"
    return f"{name} is wrong {_where(got, want, ranks)}"


def _where(got: torch.Tensor, want: Target, ranks: int) -> str:
    """Which ranks' parts are wrong, and what they hold."""
    far = (got.cpu().double() - want.exact).abs().flatten() > want.bound().flatten()
    each = -(-far.numel() // ranks)
    wrong = [rank for rank, part in enumerate(torch.split(far, each)) if bool(part.any())]
    flat, right = torch.split(got.cpu().double().flatten(), each), torch.split(want.exact.flatten(), each)
    tolerance = torch.split(want.bound().flatten(), each)
    for rank in wrong:
        if not bool(flat[rank].any()):
            return f"in the part of rank {rank}, which is all zero: dropped"
        for other in range(len(right)):
            same = other != rank and right[other].shape == flat[rank].shape
            if same and bool(((flat[rank] - right[other]).abs() <= tolerance[other]).all()):
                return f"in the part of rank {rank}, which holds that of rank {other}: swapped"
    first = int(far.nonzero()[0])
    return (
        f"in {int(far.sum())} of {far.numel()} elements, the first at place {first} of the flattened tensor"
        f" (rank {first // each})"
    )
