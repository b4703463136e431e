"""Sync mutants whose memory grows with the model: right in every value, and over the law on the next larger one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.verdict import Kind
from harness.sync import FullGatherSource, ModuleGatherSource
from harness.zoo.mutant import control, mutant

if TYPE_CHECKING:
    from harness.conformance.sync.subject import SyncContext

SHARDED = "llama-lora-zero3x2-bf16"


@mutant(intended="sync/scale", kind=Kind.OVER_BOUND, scenario=SHARDED, report="vllm#52950")
def keeps_every_tensor(model: Any, context: SyncContext) -> Any:
    """One tensor at a time, and each is kept until the round ends, for a retry that never comes."""
    sent = []
    for name, tensor in ModuleGatherSource(model):
        sent.append((name, tensor))
        yield name, tensor


@mutant(intended="sync/scale", kind=Kind.OVER_BOUND, scenario=SHARDED, report="trl#6713")
def buckets_by_the_model(model: Any, context: SyncContext) -> Any:
    """Four buckets however large the model is: small on a small model, and a quarter of any other."""
    source = ModuleGatherSource(model)
    room = sum(meta.nbytes for meta in source.metadata()) // 4
    bucket: list[Any] = []
    held = 0
    for name, tensor in source:
        bucket.append((name, tensor))
        held += tensor.nbytes
        if held >= room:
            yield from bucket
            bucket, held = [], 0
    yield from bucket


@mutant(intended="sync/scale", kind=Kind.OVER_BOUND, scenario=SHARDED, report="trl#3133")
def gathers_half_of_the_model(model: Any, context: SyncContext) -> Any:
    """The module-wise source for every other tensor, and a full gather for those between."""
    for place, ((name, tensor), (_, other)) in enumerate(
        zip(ModuleGatherSource(model), FullGatherSource(model), strict=True)
    ):
        yield name, tensor if place % 2 else other


@control(scenarios=(SHARDED,), tempts=("sync/peak", "sync/scale", "sync/other-ranks"))
def holds_three_of_the_largest(model: Any, context: SyncContext) -> Any:
    """Twice the largest tensor beside what the reference holds, at any depth: costly, and no growth."""
    source = ModuleGatherSource(model)
    largest = max(source.metadata(), key=lambda meta: meta.nbytes)
    room = torch.empty(largest.nbytes * 3 // 2, dtype=torch.uint8)
    yield from source
    del room
