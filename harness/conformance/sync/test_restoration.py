"""The model afterwards is the model before: after whole rounds, and after a round that was given up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.conformance.check import check
from harness.conformance.sync.consumer import discard, read_at_once
from harness.conformance.verdict import Kind, Violation

if TYPE_CHECKING:
    from harness.conformance.sync.stage import SyncCell

ROUNDS = 10


@check(
    "sync/base",
    must=(
        "After one round and after ten, on every rank, the model MUST hold the bytes it held before, in the same"
        " memory, sharded as before, with the adapters' state and requires_grad as before."
    ),
    since="0.1",
    reports=("trl#6688", "ms-swift#10154"),
)
def test_base(sync: SyncCell) -> None:
    complaints = []
    for finished in range(1, ROUNDS + 1):  # to the end, whatever is found: the other ranks go on too
        discard(sync.open().stream())
        if finished in {1, ROUNDS}:
            found = sync.differences()
            sync.evidence[f"differences_after_{finished}"] = len(found)
            if found:
                told = f"after {finished} round(s) {len(found)} difference(s), the first: {found[0]}"
                complaints.append(told)
                sync.rewind()
    if complaints:
        raise Violation(Kind.DRIFT, complaints[0])


@check(
    "sync/forward",
    must="After a round, the model's forward MUST give bit for bit the logits that it gave before.",
    since="0.1",
    reports=("trl#6688", "trl#2840", "trl#2877"),
)
def test_forward(sync: SyncCell) -> None:
    discard(sync.open().stream())
    try:
        unchanged = sync.forward_is_unchanged()
    except (RuntimeError, AssertionError) as error:
        raise Violation(
            Kind.DRIFT, f"the forward after a round raised {type(error).__name__}: {error}"
        ) from error
    if not unchanged:
        raise Violation(Kind.DRIFT, "the logits after a round differ from those before it")


@check(
    "sync/abandon",
    must=(
        "A pass that is given up after any yield MUST leave the model as it was before the round, and the next round"
        " MUST be right."
    ),
    since="0.1",
    reports=("trl#2840", "trl#2877", "trl#6796"),
)
def test_abandon(sync: SyncCell) -> None:
    total = len(sync.targets)
    complaints = []
    for stop in (1, total // 2, total):  # to the end, as above
        stream = sync.open().stream()
        for _ in range(stop):
            if next(stream, None) is None:
                break
        stream.close()  # type: ignore[attr-defined]
        found = sync.differences()
        sync.evidence[f"differences_after_yield_{stop}"] = len(found)
        if found:
            told = (
                f"given up after yield {stop} of {total}: {len(found)} difference(s), the first: {found[0]}"
            )
            complaints.append(told)
            sync.rewind()
    wrong = _wrong_in_a_round(sync)
    sync.evidence["wrong_in_next_round"] = len(wrong)
    anyway: list[str] = []
    if sync.on_any_rank(bool(wrong)):
        sync.rewind()
        anyway = _wrong_in_a_round(sync)
    if complaints:
        raise Violation(Kind.DRIFT, complaints[0])
    if wrong and wrong != anyway:  # what is wrong in a round on an untouched model too, other checks judge
        raise Violation(Kind.WRONG, f"the round after one that was given up: {wrong[0]} is wrong")


def _wrong_in_a_round(sync: SyncCell) -> list[str]:
    got = read_at_once(sync.open().stream())
    return [n for n, target in sync.targets.items() if n not in got or target.error(got[n]) > 1.0]
