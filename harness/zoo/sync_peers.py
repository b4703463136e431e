"""Sync mutants that only a comparison of several ranks shows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.verdict import Kind
from harness.sync import ModuleGatherSource, SyncRefused
from harness.zoo.mutant import mutant, offers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.conformance.sync.subject import SyncContext

SHARDED = "llama-lora-zero3x2-bf16"


@mutant(intended="sync/collective-order", kind=Kind.WRONG, scenario=SHARDED, report="trl#6797")
def sends_between_gathers(model: Any, context: SyncContext) -> Any:
    """Rank 0 sends to the engine's group before the next gather, the others after it; a full buffer deadlocks."""
    yield from ModuleGatherSource(model)
    gather, send = torch.ones(1), torch.ones(2)
    begins = [(gather, torch.distributed.group.WORLD), (send, _engines())]
    works = [
        torch.distributed.all_reduce(tensor, group=group, async_op=True)
        for tensor, group in (begins if context.rank == 0 else reversed(begins))
    ]
    for work in works:
        work.wait()


def _engines() -> Any:
    """The group of the engine's ranks, made once for each default group."""
    whole = torch.distributed.distributed_c10d._get_default_group()  # noqa: SLF001
    if whole not in _groups:
        _groups[whole] = torch.distributed.new_group()
    return _groups[whole]


_groups: dict[Any, Any] = {}


@mutant(intended="sync/base", kind=Kind.DRIFT, scenario=SHARDED)
def drifts_on_one_rank(model: Any, context: SyncContext) -> Any:
    """A round changes an element of the last rank's shard, of which the other ranks see nothing."""
    yield from ModuleGatherSource(model)
    _touch_the_last_shard(model, context)


@mutant(intended="sync/abandon", kind=Kind.DRIFT, scenario=SHARDED, report="trl#6796")
def drifts_on_one_rank_when_given_up(model: Any, context: SyncContext) -> Any:
    """The same, if the consumer stops early."""
    try:
        yield from ModuleGatherSource(model)
    except GeneratorExit:
        _touch_the_last_shard(model, context)
        raise


def _touch_the_last_shard(model: Any, context: SyncContext) -> None:
    if context.rank == context.world_size - 1:
        next(model.parameters()).ds_tensor.data.view(-1)[0] += 1


@mutant(intended="sync/refuses", kind=Kind.SILENT, scenario=SHARDED)
def gives_the_reason_on_one_rank(model: Any, context: SyncContext) -> Any:
    """What is wrong with the model is told on rank 0; the others only say that they cannot."""
    try:
        yield from ModuleGatherSource(model)
    except SyncRefused:
        if context.rank:
            raise RuntimeError("this round is impossible") from None
        raise


@mutant(intended="sync/other-ranks", kind=Kind.OVER_BOUND, scenario=SHARDED, report="trl#3133")
def gathers_everywhere_and_drops(model: Any, context: SyncContext) -> Any:
    """Ranks that send nothing gather every tensor whole to throw it away."""
    return ModuleGatherSource(model)


@offers(gathers_everywhere_and_drops, "to_sender")
def _to_rank_0(model: Any, context: SyncContext) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in ModuleGatherSource(model):
        if context.rank == 0:
            yield name, tensor
