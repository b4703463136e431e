"""How long what was yielded stays what it was: consumers that read later than at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.conformance.check import check
from harness.conformance.sync.consumer import DEFAULT_CHUNK, PackingConsumer, read_at_end
from harness.conformance.verdict import Kind, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from harness.conformance.sync.stage import SyncCell

SMALL_CHUNK = 64 << 10  # bytes: less than most tensors here, so that nearly every tensor ends a chunk


@check(
    "sync/stable-bytes",
    must=(
        "The bytes of a yielded tensor MUST NOT change after the yield, however long the consumer keeps it: a"
        " consumer that packs views and copies them when its chunk is full or the stream has ended (vLLM's packed"
        " transfer), or that reads only at the end, gets the merged weights."
    ),
    since="0.1",
    reports=("trl#2698", "trl#2856", "verl#7014", "verl#7987", "ms-swift#10204"),
)
def test_stable_bytes(sync: SyncCell) -> None:
    arrivals: dict[str, dict[str, torch.Tensor]] = {}
    changed: dict[str, int] = {}
    for label, chunk in (("packed_default", DEFAULT_CHUNK), ("packed_64KiB", SMALL_CHUNK)):
        consumer = PackingConsumer(chunk)
        at_yield: dict[str, torch.Tensor] = {}
        consumer.consume(_remember(sync.open().stream(), at_yield))
        arrivals[label] = consumer.arrived
        changed[label] = _changed(at_yield, consumer.arrived)
    at_yield = {}
    arrivals["read_at_end"] = read_at_end(_remember(sync.open().stream(), at_yield))
    changed["read_at_end"] = _changed(at_yield, arrivals["read_at_end"])

    adapted = [name for name, target in sync.targets.items() if target.adapted]
    merged = {
        label: sum(name in got and sync.targets[name].error(got[name]) <= 1.0 for name in adapted)
        for label, got in arrivals.items()
    }
    sync.evidence.update(adapted=len(adapted), arrived_merged=merged, changed_after_yield=changed)
    late = {label: count for label, count in changed.items() if count}
    if late:
        worst = max(late, key=lambda label: late[label])
        raise Violation(
            Kind.STALE,
            f"{merged[worst]} of {len(adapted)} adapted tensors arrived merged ({_consumer(worst)});"
            f" {late[worst]} changed after their yield",
        )


def _consumer(label: str) -> str:
    return {
        "packed_default": "packed as vLLM does, default 1 GiB buffer",
        "packed_64KiB": "packed as vLLM does, 64 KiB buffer",
        "read_at_end": "read at the end of the stream",
    }[label]


def _remember(
    stream: Iterable[tuple[str, torch.Tensor]], into: dict[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in stream:
        into[name] = tensor.detach().clone()
        yield name, tensor


def _changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> int:
    """How many tensors are not bit for bit what they were at their yield."""
    return sum(not tensor.equal(after[name]) for name, tensor in before.items())
