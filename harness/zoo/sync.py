"""Sync mutants and controls. Each breaks (or bends) the reference in one place and leaves the rest as it is.

Those that take several rounds, a failure or a comparison of ranks to see are in ``sync_rounds`` and ``sync_peers``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.verdict import Kind
from harness.sync import FullGatherSource, ModuleGatherSource
from harness.zoo import sync_peers, sync_rounds  # noqa: F401 - declare the others of the family
from harness.zoo.mutant import control, mutant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.conformance.sync.subject import SyncContext

PLAIN, DORA, POLICY = (
    "llama-lora-replicated-fp32",
    "llama-dora-replicated-bf16",
    "tiedllama-policy-replicated-bf16",
)
SHARDED = "llama-lora-zero3x2-bf16"


class Declared:
    """A source with given metadata and given passes."""

    def __init__(self, metadata: Any, passes: Any) -> None:
        self._metadata, self._passes = metadata, passes

    def metadata(self) -> Any:
        return self._metadata()

    def __iter__(self) -> Any:
        return iter(self._passes())


@mutant(intended="sync/smoke", kind=Kind.BROKEN, scenario=PLAIN, report="vllm#57022")
def yields_nothing(model: Any, context: SyncContext) -> Any:
    """A round that answers without moving anything."""
    return iter(())


@mutant(intended="sync/smoke", kind=Kind.BROKEN, scenario=PLAIN)
def yields_bare_tensors(model: Any, context: SyncContext) -> Any:
    """Tensors without their names."""
    return (tensor for _, tensor in ModuleGatherSource(model))


@mutant(intended="sync/smoke", kind=Kind.RAISED, scenario=PLAIN)
def raises_at_start(model: Any, context: SyncContext) -> Any:
    """A round that cannot be started."""
    raise RuntimeError("no engine to sync with")


@mutant(intended="sync/names", kind=Kind.LEAKED_NAME, scenario=PLAIN, report="trl#6975")
def leaks_adapter_names(model: Any, context: SyncContext) -> Any:
    """The adapter's own tensors among the model's."""
    yield from ModuleGatherSource(model)
    for name, parameter in model.named_parameters():
        if "lora_A" in name:
            yield name, parameter.detach().clone()
            return


@mutant(intended="sync/names", kind=Kind.LEAKED_NAME, scenario=POLICY, report="trl#6975")
def keeps_the_wrapper_in_the_name(model: Any, context: SyncContext) -> Any:
    """Only the adapter name ``default`` is taken out of names."""
    for name, tensor in ModuleGatherSource(model):
        yield name.replace("model.norm.", "model.norm.modules_to_save.policy."), tensor


@mutant(intended="sync/names", kind=Kind.MISSING, scenario=PLAIN, report="trl's first LoRA sync")
def sends_tuner_modules_only(model: Any, context: SyncContext) -> Any:
    """Norms, embeddings and the head are never sent."""
    for name, tensor in ModuleGatherSource(model):
        if "_proj" in name:
            yield name, tensor


@mutant(intended="sync/names", kind=Kind.WRONG, scenario=PLAIN)
def yields_one_twice(model: Any, context: SyncContext) -> Any:
    """The last tensor is yielded again."""
    for name, tensor in ModuleGatherSource(model):
        yield name, tensor
    yield name, tensor


@mutant(intended="sync/metadata", kind=Kind.WRONG, scenario=PLAIN, report="SkyRL#1581")
def metadata_in_another_order(model: Any, context: SyncContext) -> Any:
    """Declares by name, streams by module."""
    source = ModuleGatherSource(model)
    return Declared(lambda: sorted(source.metadata(), key=lambda each: each.name), lambda: source)


@mutant(intended="sync/metadata", kind=Kind.OVER_BOUND, scenario=SHARDED, report="trl#3133")
def metadata_gathers_the_model(model: Any, context: SyncContext) -> Any:
    """Walks the materialised model to learn its shapes."""
    source = ModuleGatherSource(model)

    def walk() -> Any:
        dict(FullGatherSource(model))
        return source.metadata()

    return Declared(walk, lambda: source)


@mutant(intended="sync/values", kind=Kind.STALE, scenario=PLAIN, report="trl#2698")
def forgets_to_merge(model: Any, context: SyncContext) -> Any:
    """Base weights under the right names: the adapter has no effect in the engine."""
    for name, tensor in ModuleGatherSource(model):
        layer = model.get_submodule(f"base_model.model.{name.rpartition('.')[0]}")
        base = getattr(layer, "base_layer", None)
        yield name, tensor if base is None else base.weight.detach().clone()


@mutant(intended="sync/values", kind=Kind.WRONG, scenario=PLAIN)
def scales_the_delta_twice(model: Any, context: SyncContext) -> Any:
    """lora_alpha / r is applied to a delta that has it already."""
    for name, tensor in ModuleGatherSource(model):
        layer = model.get_submodule(f"base_model.model.{name.rpartition('.')[0]}")
        base = getattr(layer, "base_layer", None)
        yield name, tensor if base is None else tensor + (tensor - base.weight.detach())


@mutant(intended="sync/values", kind=Kind.WRONG, scenario=SHARDED)
def swaps_the_shards(model: Any, context: SyncContext) -> Any:
    """The gathered halves are put together in the wrong order."""
    for name, tensor in ModuleGatherSource(model):
        yield name, torch.roll(tensor.flatten(), tensor.numel() // 2).view(tensor.shape)


@mutant(intended="sync/stable-bytes", kind=Kind.STALE, scenario=PLAIN, report="verl#7987")
def reuses_its_buffer(model: Any, context: SyncContext) -> Any:
    """Every tensor is yielded as a view of one buffer, overwritten by the next."""
    source = ModuleGatherSource(model)
    largest = max(meta.nbytes for meta in source.metadata())
    buffer = torch.empty(largest, dtype=torch.uint8)
    for name, tensor in source:
        view = buffer[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        yield name, view.copy_(tensor)


@mutant(intended="sync/stable-bytes", kind=Kind.STALE, scenario=PLAIN, report="trl#2698")
def unmerges_what_it_yielded(model: Any, context: SyncContext) -> Any:
    """Yields live parameters of a merged model and unmerges when the stream ends."""
    model.merge_adapter()
    try:
        yield from _live(model)
    finally:
        model.unmerge_adapter()


@mutant(intended="sync/base", kind=Kind.DRIFT, scenario=POLICY, report="trl#6688")
def adds_and_subtracts_the_delta(model: Any, context: SyncContext) -> Any:
    """Merges in place and takes the delta off again: bf16 does not give the base back."""
    model.merge_adapter()
    try:
        yield from [(name, tensor.clone()) for name, tensor in _live(model)]
    finally:
        model.unmerge_adapter()


@mutant(intended="sync/base", kind=Kind.DRIFT, scenario=PLAIN)
def moves_a_weight(model: Any, context: SyncContext) -> Any:
    """The right bytes, in other memory: captured graphs and optimizers still hold the old."""
    yield from ModuleGatherSource(model)
    parameter = next(model.parameters())
    parameter.data = parameter.data.clone()


@mutant(intended="sync/base", kind=Kind.DRIFT, scenario=PLAIN)
def freezes_the_adapter(model: Any, context: SyncContext) -> Any:
    """Switches gradients off and leaves them off."""
    yield from ModuleGatherSource(model)
    for parameter in model.parameters():
        parameter.requires_grad_(False)


@mutant(intended="sync/forward", kind=Kind.DRIFT, scenario=PLAIN)
def leaves_a_hook(model: Any, context: SyncContext) -> Any:
    """A forward hook of the sync outlives it."""
    head = model.get_submodule("base_model.model.lm_head")
    head.register_forward_hook(lambda *given: given[-1] * 1.5)
    yield from ModuleGatherSource(model)


@mutant(intended="sync/abandon", kind=Kind.DRIFT, scenario=PLAIN, report="trl#6796")
def restores_at_the_end_only(model: Any, context: SyncContext) -> Any:
    """Exact restoration, without try/finally: right unless the consumer stops early."""
    kept = {parameter: parameter.data for parameter in model.parameters()}
    for parameter in kept:
        parameter.data = parameter.data.clone()
    model.merge_adapter()
    yield from [(name, tensor.clone()) for name, tensor in _live(model)]
    model.unmerge_adapter()
    for parameter, data in kept.items():
        parameter.data = data


@mutant(intended="sync/peak", kind=Kind.OVER_BOUND, scenario=SHARDED, report="trl#3133")
def gathers_the_whole_model(model: Any, context: SyncContext) -> Any:
    """Right in every value, at the price of the model."""
    return FullGatherSource(model)


@mutant(intended="sync/peak", kind=Kind.OVER_BOUND, scenario=SHARDED, report="trl#6713")
def sizes_buckets_by_numel(model: Any, context: SyncContext) -> Any:
    """A sharded parameter has numel() 0, so that one bucket holds the model."""
    sizes = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): p.numel() * p.element_size()
        for name, p in model.named_parameters()
    }
    bucket: list[tuple[str, torch.Tensor]] = []
    held = 0
    for name, tensor in ModuleGatherSource(model):
        bucket.append((name, tensor))
        held += sizes.get(name, 0)
        if held > 1 << 20:
            yield from bucket
            bucket, held = [], 0
    yield from bucket


@control(
    scenarios=(PLAIN, SHARDED),
    tempts=(
        "sync/values",
        "sync/adapters",
        "sync/stable-bytes",
        "sync/base",
        "sync/round-trip",
        "sync/peak",
        "sync/scale",
    ),
)
def merges_in_float64(model: Any, context: SyncContext) -> Any:
    """Merges in float64 and rounds once: nearer to the truth than PEFT, and not bit-equal to it."""
    for name, tensor in ModuleGatherSource(model):
        layer = model.get_submodule(f"base_model.model.{name.rpartition('.')[0]}")
        if len(getattr(layer, "scaling", ())) != 1 or layer.merged_adapters or layer.lora_variant:
            yield name, tensor
            continue
        ((adapter, scale),) = layer.scaling.items()
        a, b = (_whole(part[adapter].weight).double() for part in (layer.lora_A, layer.lora_B))
        del tensor  # what takes its place is gathered by hand
        merged = _whole(layer.base_layer.weight)
        for rows in range(0, merged.shape[0], 64):  # or the float64 copies would be what its peak is made of
            part = slice(rows, rows + 64)
            merged[part] = (merged[part].double() + (b[part] @ a) * scale).to(merged.dtype)
        yield name, merged


@control(
    scenarios=(DORA, SHARDED),
    tempts=(
        "sync/names",
        "sync/metadata",
        "sync/values",
        "sync/round-trip",
        "sync/collective-order",
        "sync/buckets",
    ),
)
def yields_in_another_order(model: Any, context: SyncContext) -> Any:
    """Each two neighbours change places, and metadata() says so."""
    source = ModuleGatherSource(model)

    def swapped(items: Any) -> Iterator[Any]:
        items = iter(items)
        for first in items:
            yield from (first,) if (second := next(items, None)) is None else (second, first)

    return Declared(lambda: list(swapped(source.metadata())), lambda: swapped(source))


@control(
    scenarios=(PLAIN, POLICY),
    tempts=(
        "sync/values",
        "sync/stable-bytes",
        "sync/round-trip",
        "sync/tied",
        "sync/refuses",
        "sync/buckets",
    ),
)
def yields_strided_tensors(model: Any, context: SyncContext) -> Any:
    """Right values in transposed memory: not contiguous."""
    for name, tensor in ModuleGatherSource(model):
        yield name, tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


def _live(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Live parameters of a replicated model under the engine's names."""
    for name, parameter in model.named_parameters():
        if "lora_" in name or "original_module" in name:
            continue
        plain = name.removeprefix("base_model.model.").replace(".base_layer", "")
        yield (
            plain.replace(".modules_to_save.policy", "").replace(".modules_to_save.default", ""),
            parameter.data,
        )


def _whole(parameter: Any) -> torch.Tensor:
    """The full value of a parameter, gathered by hand; a collective when it is sharded."""
    shard = getattr(parameter, "ds_tensor", None)
    if shard is None:
        return parameter.detach().clone()  # type: ignore[no-any-return]
    parts = [torch.empty_like(shard) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(parts, shard.detach())
    whole: torch.Tensor = torch.cat(parts)[: parameter.ds_numel].view(parameter.ds_shape)
    return whole
