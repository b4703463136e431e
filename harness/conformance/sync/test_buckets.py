"""Subjects that pack a round into buckets: each bucket within its size, nothing lost, nothing shared."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch

from harness.conformance.check import check
from harness.conformance.sync.subject import packed
from harness.conformance.verdict import Kind, Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.conformance.sync.stage import SyncCell

Entries = list[tuple[str, torch.Tensor]]


@check(
    "sync/buckets",
    must=(
        "A subject that packs a round into buckets of so many bytes MUST size them by the tensors' full sizes (a tensor"
        " larger than a bucket is alone in one), keep the order, names, shapes and dtypes of the round, and give each"
        " bucket bytes of its own, which nothing changes later."
    ),
    since="0.1",
    reports=("trl#6713", "verl#7987", "ms-swift#10204"),
    scenarios=("llama-lora-*", "gpt2-lora-*", "moe-lora-*", "convnet-lora-*"),
)
def test_buckets(sync: SyncCell) -> None:
    pack = sync.offered("buckets")
    expected = [(n, t.dtype, tuple(t.shape)) for n, t in sync.open().stream()]
    nbytes = (
        2 * sorted(sync.sizes.values())[len(sync.sizes) // 2]
    )  # most tensors share one, the largest do not fit
    kept: list[Entries] = []
    copies: list[Entries] = []
    for bucket in packed(pack, sync.open().source, nbytes):
        entries: Entries = list(bucket.tensors())
        kept.append(entries)
        copies.append([(name, tensor.detach().clone()) for name, tensor in entries])
    held = [sum(tensor.nbytes for _, tensor in entries) for entries in kept]
    sync.evidence.update(bucket_bytes=nbytes, buckets=len(kept), fullest_bytes=max(held, default=0))
    _judge_sizes(kept, held, nbytes)
    arrived = [(n, t.dtype, tuple(t.shape)) for entries in kept for n, t in entries]
    if arrived != expected:
        place = next(
            (i for i, (a, b) in enumerate(zip(arrived, expected, strict=False)) if a != b), len(arrived)
        )
        raise Violation(
            Kind.WRONG,
            f"{len(arrived)} tensors in buckets, {len(expected)} in the round; they differ from tensor {place} on",
        )
    changed = sum(
        not torch.equal(now[1], then[1])
        for entries, copied in zip(kept, copies, strict=True)
        for now, then in zip(entries, copied, strict=True)
    )
    if changed:
        raise Violation(
            Kind.STALE, f"{changed} of {len(arrived)} tensors changed after their bucket was given"
        )
    _judge_values(sync, copies)
    _judge_ownership(sync, kept)


def _judge_sizes(kept: Sequence[Entries], held: Sequence[int], nbytes: int) -> None:
    for index, (entries, size) in enumerate(zip(kept, held, strict=True)):
        if size > nbytes and len(entries) > 1:
            raise Violation(
                Kind.OVER_BOUND,
                f"bucket {index} of {len(kept)} holds {len(entries)} tensors of {size} bytes, a bucket is {nbytes}",
            )
    if len(kept) > 1 and all(a + b <= nbytes for a, b in pairwise(held)):
        raise Violation(
            Kind.WRONG, f"{len(kept)} buckets, any two neighbours of which fit into one of {nbytes} bytes"
        )


def _judge_values(sync: SyncCell, copies: Sequence[Entries]) -> None:
    wrong = [
        n for entries in copies for n, t in entries if n in sync.targets and not sync.targets[n].accepts(t)
    ]
    if wrong:
        raise Violation(Kind.WRONG, f"{len(wrong)} tensor(s) are wrong in their bucket, such as {wrong[0]}")


def _judge_ownership(sync: SyncCell, kept: Sequence[Entries]) -> None:
    """Overwrite every bucket: the model must not notice."""
    for entries in kept:
        for _, tensor in entries:
            tensor.zero_()
    found = sync.differences()
    if found:
        raise Violation(Kind.DRIFT, f"writing to the buckets changed the model: {found[0]}")
