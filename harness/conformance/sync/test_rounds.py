"""Many rounds: what was trained in between arrives, nothing stays behind, and training goes on as without them."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import torch

from harness.conformance.check import check
from harness.conformance.sync.coding import explain
from harness.conformance.sync.consumer import discard, read_at_once
from harness.conformance.sync.masters import OptimizerState
from harness.conformance.sync.scenarios import SPREAD
from harness.conformance.sync.state import ModelState
from harness.conformance.verdict import Kind, Violation
from harness.memory import measure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.conformance.sync.oracle import Target
    from harness.conformance.sync.stage import SyncCell

ROUNDS = 20
RETAINED = 256 << 10  # bytes over all rounds: tables and caches of Python's own, whatever the model's size


@check(
    "sync/round-trip",
    must=(
        "Each round MUST yield the weights of that round: when every parameter is trained between rounds, and then put"
        " back, the second round yields the trained weights and the third those of the first."
    ),
    since="0.1",
    reports=("trl#5312", "vllm#57022", "tokenspeed#1373", "SkyRL#1680", "SkyRL#1345"),
    scenarios=SPREAD,
)
def test_round_trip(sync: SyncCell) -> None:
    first = sync.targets
    complaints = [_judge(sync, "A", read_at_once(sync.open().stream()), first, first)]
    trained = sync.train(turn=1)
    complaints.append(_judge(sync, "B", read_at_once(sync.open().stream()), trained, first))
    sync.rewind()
    complaints.append(_judge(sync, "A again", read_at_once(sync.open().stream()), first, trained))
    for complaint in filter(None, complaints):  # not before: the other ranks take part in every round
        raise complaint


def _judge(
    sync: SyncCell,
    turn: str,
    got: Mapping[str, torch.Tensor],
    now: Mapping[str, Target],
    before: Mapping[str, Target],
) -> Violation | None:
    dropped = sorted(now.keys() - got.keys())
    wrong = [name for name, target in now.items() if name in got and not target.accepts(got[name])]
    sync.evidence[f"round_{turn.replace(' ', '_')}"] = {"dropped": len(dropped), "wrong": len(wrong)}
    if wrong:
        stale = [name for name in wrong if now is not before and before[name].accepts(got[name])]
        name = (stale or wrong)[0]
        account = explain(name, got[name], now, before, sync.scenario.world_size)
        return Violation(
            Kind.STALE if stale else Kind.WRONG,
            f"round {turn}: {len(wrong)} of {len(now)} tensors are wrong; {account}",
        )
    if dropped:
        return Violation(
            Kind.MISSING,
            f"round {turn}: {len(dropped)} of {len(now)} tensors were dropped, the first: {dropped[0]}",
        )
    return None


@check(
    "sync/leak",
    must=(
        f"{ROUNDS} rounds whose consumer keeps nothing MUST leave no tensor behind, and no more than"
        f" {RETAINED >> 10} KiB in all."
    ),
    since="0.1",
    reports=("vllm#52950",),
    scenarios=(
        "*-lora-replicated-*",
        "llama-lora-zero3*x2-*",
        "llama-lora-fsdp2*",
        "moe-lora-*",
        "convnet-lora-*",
    ),
)
def test_leak(sync: SyncCell) -> None:
    discard(sync.open().stream())
    discard(sync.open().stream())
    before = _tensors()
    with measure(sync.scenario.device) as memory:
        for _ in range(ROUNDS):
            discard(sync.open().stream())
    left = {key: shape for key, shape in _tensors().items() if key not in before}
    sync.evidence.update(
        rounds=ROUNDS,
        retained_bytes=memory.retained_bytes,
        allowed_bytes=RETAINED,
        tensors_left=len(left),
        shapes=sorted(set(left.values()), reverse=True)[:3],
    )
    if len(left) >= ROUNDS:
        raise Violation(
            Kind.LEAK,
            f"after {ROUNDS} rounds {len(left)} tensors more are live than before, the largest of shape"
            f" {max(left.values(), key=lambda shape: torch.Size(shape).numel())}",
        )
    if memory.retained_bytes > RETAINED:
        raise Violation(
            Kind.LEAK,
            f"{memory.retained_bytes} bytes are still live after {ROUNDS} rounds, {RETAINED} are allowed",
        )


def _tensors() -> dict[int, tuple[int, ...]]:
    """Shape of every live tensor, by its identity."""
    gc.collect()
    return {id(each): tuple(each.shape) for each in gc.get_objects() if issubclass(type(each), torch.Tensor)}


@check(
    "sync/optimizer",
    must=(
        "A round between two optimizer steps MUST leave the optimizer's state and its master weights untouched, and the"
        " step after it MUST give bit for bit the parameters that it gives without the round."
    ),
    since="0.1",
    reports=("trl#6688", "ms-swift#10154"),
    scenarios=SPREAD,
)
def test_optimizer(sync: SyncCell) -> None:
    trainer = sync.stage.trainer
    untouched = OptimizerState.capture(trainer)
    trainer.step()  # from here on the moments exist
    state, model = OptimizerState.capture(trainer), ModelState.capture(sync.model)
    trainer.step()
    twin, twins_state = ModelState.capture(sync.model), OptimizerState.capture(trainer)
    state.restore()
    model.restore()
    discard(sync.open().stream())
    touched = state.differences()
    trainer.step()
    apart = twin.differences() + twins_state.differences()
    sync.evidence.update(optimizer_tensors=len(state.tensors), touched=len(touched), apart=len(apart))
    untouched.restore()
    if touched:
        raise Violation(
            Kind.DRIFT, f"a round touched {len(touched)} tensor(s) of the optimizer: {touched[0]}"
        )
    if apart:
        raise Violation(
            Kind.DRIFT,
            f"the step after a round differs in {len(apart)} place(s) from the same step without it: {apart[0]}",
        )
