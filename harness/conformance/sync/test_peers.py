"""Several ranks: they issue the same collectives in the same order, and those that send nothing hold nothing."""

from __future__ import annotations

from itertools import combinations, zip_longest
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.check import check
from harness.conformance.sync.consumer import discard, read_at_once
from harness.conformance.sync.subject import Round
from harness.conformance.sync.traffic import Begun, recorded
from harness.conformance.verdict import Kind, Violation
from harness.memory import measure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.conformance.sync.stage import SyncCell

SEVERAL = ("*x2-*", "*x4-*")
IDLE_SHARE = (
    4  # a rank that sends nothing may hold a piece of its shard on its way: a quarter of the largest tensor
)
INTERPRETER = 512 << 10  # bytes: as in sync/peak


@check(
    "sync/collective-order",
    must=(
        "In a round, any two ranks MUST issue the same collectives in the same order, over all the process groups that"
        " both belong to, and each message between them MUST be received in the order in which it was sent."
    ),
    since="0.1",
    reports=("trl#6797", "trl#6798", "trl#7103"),
    scenarios=SEVERAL,
)
def test_collective_order(sync: SyncCell) -> None:
    with recorded() as begun:
        discard(sync.open().stream())
    every: list[list[Begun]] = [[] for _ in range(sync.scenario.world_size)]
    torch.distributed.all_gather_object(every, begun)
    sync.evidence.update(
        collectives=[sum(each.peer is None for each in own) for own in every],
        messages=[sum(each.peer is not None for each in own) for own in every],
    )
    for one, other in combinations(range(len(every)), 2):
        compare_collectives(one, every[one], other, every[other])
        for sender, receiver in ((one, other), (other, one)):
            compare_messages(sender, every[sender], receiver, every[receiver])


def compare_collectives(one: int, first: Sequence[Begun], other: int, second: Sequence[Begun]) -> None:
    """Raise a ``Violation`` unless two ranks began the same collectives of their common groups, in one order."""
    both = [
        [each for each in begun if each.peer is None and {one, other} <= set(each.members)]
        for begun in (first, second)
    ]
    for index, (left, right) in enumerate(zip_longest(*both)):
        if left is None or right is None or (left.operation, left.group) != (right.operation, right.group):
            raise Violation(
                Kind.WRONG,
                f"collective {index} of a round is {left or 'none'} on rank {one} and {right or 'none'} on rank"
                f" {other}",
            )


def compare_messages(sender: int, sent: Sequence[Begun], receiver: int, received: Sequence[Begun]) -> None:
    """Raise a ``Violation`` unless one rank receives from another what that sends it, in that order."""
    out = [(m.group, m.nbytes) for m in sent if m.operation == "send" and m.peer == receiver]
    into = [(m.group, m.nbytes) for m in received if m.operation == "recv" and m.peer == sender]
    for index, (left, right) in enumerate(zip_longest(out, into)):
        if left != right:
            raise Violation(
                Kind.WRONG,
                f"message {index} from rank {sender} to rank {receiver}: {left or 'none'} was sent, {right or 'none'}"
                " is expected (group, bytes)",
            )


@check(
    "sync/other-ranks",
    must=(
        "Where a subject gives tensors to one rank alone, that rank MUST get all of them, and the peak of live bytes on"
        f" the others MUST NOT exceed 1/{IDLE_SHARE} of the largest tensor, whatever the depth of the model."
    ),
    since="0.1",
    reports=("trl#3133", "ms-swift#7986"),
    scenarios=("*llama-lora-zero3x2-*", "gpt2-*-zero3x2-*", "moe-*-zero3x2-*", "*zero3x4-*", "*fsdp2x2-*"),
)
def test_other_ranks(sync: SyncCell) -> None:
    to_sender = sync.offered("to_sender")
    arrived = read_at_once(Round(to_sender, sync.model, sync.context).stream())
    with measure(sync.scenario.device) as memory:
        discard(Round(to_sender, sync.model, sync.context).stream())
    largest = max(sync.sizes.values())
    bound = largest // IDLE_SHARE + INTERPRETER
    held: list[Any] = [None] * sync.scenario.world_size
    site = memory.top(1)[0] if memory.top(1) else None
    torch.distributed.all_gather_object(held, (memory.peak_bytes, site.bytes if site else 0, str(site)))
    peak, of_site, where = max(held[1:])
    sync.evidence.update(
        arrived=len(arrived),
        peak_bytes=peak,
        bound_bytes=bound,
        largest_bytes=largest,
        model_bytes=sum(sync.sizes.values()),
        top=[{"site": where, "bytes": of_site}],
    )
    wrong = [n for n, t in sync.targets.items() if n not in arrived or not t.accepts(arrived[n])]
    if sync.stage.rank == 0 and wrong:
        raise Violation(Kind.MISSING, f"rank 0 got {len(wrong)} tensor(s) wrong or not at all: {wrong[0]}")
    if peak > bound:
        raise Violation(
            Kind.OVER_BOUND,
            f"a rank that sends nothing held {peak} bytes above its shard, bound {bound} (largest tensor"
            f" {largest} / {IDLE_SHARE}, and the interpreter's); {of_site} of it in {where}",
        )
