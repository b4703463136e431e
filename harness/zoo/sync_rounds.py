"""Sync mutants that only several rounds, a failure, or another state of the model show."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from harness.conformance.verdict import Kind
from harness.sync import Bucket, ModuleGatherSource, SyncRefused
from harness.zoo.mutant import mutant, offers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.conformance.sync.subject import SyncContext

PLAIN, SHARDED, TIED = (
    "llama-lora-replicated-fp32",
    "llama-lora-zero3x2-bf16",
    "tiedllama-policy-replicated-bf16",
)
_notes: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def _note(model: Any, who: str, first: Callable[[], Any]) -> Any:
    """What a mutant remembers of a model from round to round."""
    notes = _notes.setdefault(model, {})
    return notes[who] if who in notes else notes.setdefault(who, first())


@mutant(intended="sync/round-trip", kind=Kind.STALE, scenario=PLAIN, report="trl#5312")
def sends_the_first_round_again(model: Any, context: SyncContext) -> Any:
    """What was gathered once is kept and sent for ever."""
    kept = _note(model, "round", lambda: [(n, t.clone()) for n, t in ModuleGatherSource(model)])
    return iter([(name, tensor.clone()) for name, tensor in kept])


@mutant(intended="sync/round-trip", kind=Kind.STALE, scenario=PLAIN, report="SkyRL#1680")
def keeps_the_largest_from_the_first_round(model: Any, context: SyncContext) -> Any:
    """One tensor is cached by its size, which never changes."""
    for name, tensor in ModuleGatherSource(model):
        cached = "embed_tokens" in name
        yield name, _note(model, name, tensor.clone).clone() if cached else tensor


@mutant(intended="sync/round-trip", kind=Kind.MISSING, scenario=PLAIN, report="vllm#57022")
def sends_only_what_is_new_by_its_sum(model: Any, context: SyncContext) -> Any:
    """After the first round, a tensor whose sum rounds to the same as before counts as unchanged."""
    seen: dict[str, int] = _note(model, "sums", dict)
    for name, tensor in ModuleGatherSource(model):
        number = int(tensor.double().sum().round().clamp(-4, 4))
        if seen.get(name) != number:
            yield name, tensor
        seen[name] = number


@mutant(intended="sync/round-trip", kind=Kind.WRONG, scenario=SHARDED, report="SkyRL#1345")
def swaps_the_shards_after_the_first_round(model: Any, context: SyncContext) -> Any:
    """The order of the ranks is right once."""
    rounds = _note(model, "rounds", list)
    rounds.append(1)
    for name, tensor in ModuleGatherSource(model):
        swapped = torch.roll(tensor.flatten(), tensor.numel() // 2).view(tensor.shape)
        yield name, swapped if len(rounds) > 1 else tensor


@mutant(intended="sync/leak", kind=Kind.LEAK, scenario=PLAIN, report="vllm#52950")
def keeps_every_round(model: Any, context: SyncContext) -> Any:
    """The last tensor of each round is kept in a list of what was sent."""
    for name, tensor in ModuleGatherSource(model):
        if name == "model.norm.weight":
            _note(model, "sent", list).append(tensor)
        yield name, tensor


@mutant(intended="sync/optimizer", kind=Kind.DRIFT, scenario=PLAIN)
def leaves_gradients(model: Any, context: SyncContext) -> Any:
    """Every trained parameter has a gradient after a round, which the next backward adds to."""
    yield from ModuleGatherSource(model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.full_like(parameter, 1e-2)


@mutant(intended="sync/consumer-raises", kind=Kind.DRIFT, scenario=PLAIN, report="trl#6796")
def restores_when_it_is_closed(model: Any, context: SyncContext) -> Any:
    """An iterator that unmerges at its end or in close(), which no plain loop calls."""
    return _RestoresWhenClosed(model)


class _RestoresWhenClosed:
    def __init__(self, model: Any) -> None:
        self._model, self._stream = model, iter(ModuleGatherSource(model))
        self._flags = [m for m in model.modules() if hasattr(m, "merged_adapters")]
        for module in self._flags:
            module._disable_adapters = True  # noqa: SLF001

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._stream)
        except StopIteration:
            self.close()
            raise

    def close(self) -> None:
        for module in self._flags:
            module._disable_adapters = False  # noqa: SLF001


@mutant(intended="sync/rank-fails", kind=Kind.SILENT, scenario=SHARDED, report="trl#6796")
def tells_nobody_that_it_failed(model: Any, context: SyncContext) -> Any:
    """The rank whose transport breaks raises; the others end as if all had been sent."""
    return ModuleGatherSource(model)


@offers(tells_nobody_that_it_failed, "push")
def _exhausts_and_raises(source: Any, send: Callable[[str, Any], object], seconds: float) -> None:
    failure = None
    for name, tensor in source:
        try:
            if failure is None:
                send(name, tensor)
        except Exception as error:  # noqa: BLE001
            failure = error
    if failure is not None:
        raise failure


@mutant(intended="sync/rank-fails", kind=Kind.HANG, scenario=SHARDED, report="trl#6913")
def leaves_its_peers_waiting(model: Any, context: SyncContext) -> Any:
    """The rank whose transport breaks leaves at once, in the middle of the others' collectives."""
    return ModuleGatherSource(model)


@offers(leaves_its_peers_waiting, "push")
def _leaves(source: Any, send: Callable[[str, Any], object], seconds: float) -> None:
    for name, tensor in list(source):
        torch.distributed.all_reduce(torch.zeros(1))
        send(name, tensor)


@mutant(intended="sync/refuses", kind=Kind.SILENT, scenario=PLAIN, report="trl#4973")
def sends_packed_bytes(model: Any, context: SyncContext) -> Any:
    """What it cannot merge it sends as it lies there."""
    try:
        yield from ModuleGatherSource(model)
    except SyncRefused:
        yield from _live(model)


@mutant(intended="sync/refuses", kind=Kind.RAISED, scenario=SHARDED)
def refuses_too_late(model: Any, context: SyncContext) -> Any:
    """The ranks first agree on their number, and then look at the model."""
    torch.distributed.all_reduce(torch.ones(1))
    yield from ModuleGatherSource(model)


@mutant(intended="sync/tied", kind=Kind.WRONG, scenario=TIED)
def sends_a_head_of_its_own(model: Any, context: SyncContext) -> Any:
    """The tied head is sent too, from an initialisation that nothing tied."""
    for name, tensor in ModuleGatherSource(model):
        yield name, tensor
        if "embed_tokens" in name:
            head = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1)) * 0.02
    yield "lm_head.weight", head.to(tensor.dtype)


@mutant(intended="sync/adapters", kind=Kind.WRONG, scenario=PLAIN, report="trl#6975")
def merges_the_first_adapter_only(model: Any, context: SyncContext) -> Any:
    """Of several active adapters, those after the first are forgotten."""
    active = list(model.base_model.active_adapters)
    model.base_model.set_adapter(active[0])
    try:
        yield from ModuleGatherSource(model)
    finally:
        model.base_model.set_adapter(active)


@mutant(intended="sync/adapters", kind=Kind.WRONG, scenario=PLAIN)
def unmerges_what_was_merged(model: Any, context: SyncContext) -> Any:
    """A model that was merged before the round is not merged after it."""
    yield from ModuleGatherSource(model)
    for module in model.modules():
        if getattr(module, "merged_adapters", None):
            module.unmerge()


@mutant(intended="sync/buckets", kind=Kind.OVER_BOUND, scenario=SHARDED, report="trl#6713")
def fills_buckets_by_numel(model: Any, context: SyncContext) -> Any:
    """A sharded parameter has numel() 0, so that nothing ever fills a bucket."""
    return ModuleGatherSource(model)


class _Views:
    """A bucket of the tensors that it was given."""

    def __init__(self, entries: list[tuple[str, torch.Tensor]]) -> None:
        self._entries = entries

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        return self._entries


@offers(fills_buckets_by_numel, "buckets")
def _one_bucket(source: Any, nbytes: int) -> Iterator[_Views]:
    yield _Views(list(source))


@mutant(intended="sync/buckets", kind=Kind.STALE, scenario=PLAIN, report="verl#7987")
def fills_one_buffer_again(model: Any, context: SyncContext) -> Any:
    """Every bucket is a view of the same buffer."""
    return ModuleGatherSource(model)


@offers(fills_one_buffer_again, "buckets")
def _same_buffer(source: Any, nbytes: int) -> Iterator[Bucket]:
    from harness.sync import bucketed

    largest = max(nbytes, *(meta.nbytes for meta in source.metadata())) + 16 * len(source.metadata())
    buffer = torch.empty(largest, dtype=torch.uint8)
    for bucket in bucketed(source, nbytes):
        view = buffer[: bucket.buffer.numel()].copy_(bucket.buffer)
        yield Bucket(bucket.entries, bucket.offsets, view)


def _live(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield name, parameter.data
