"""Under load: every answer belongs to one round of weights, and rounds cost neither memory nor processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psutil
import pytest

from harness.conformance.check import check
from harness.conformance.engine.load import Load
from harness.conformance.engine.scoring import BOUND
from harness.conformance.engine.stage import PROMPTS
from harness.conformance.verdict import Kind, Violation
from harness.ipc import WorkerFailed

if TYPE_CHECKING:
    from harness.conformance.engine.load import Asked
    from harness.conformance.engine.stage import EngineCell

pytestmark = pytest.mark.timeout(900)

ROUNDS = 10
GROWTH_BYTES = 64 << 20
"""What a server's processes may grow by over the rounds: allocators keep some of what they were given back."""


@check(
    "engine/versions",
    must=(
        "While requests keep coming, transfers MUST succeed, every request MUST be answered, and every answer MUST be"
        " that of one round of weights, prompt and generated tokens alike."
    ),
    since="0.1",
    reports=("trl#5312", "SkyRL#1680", "verl#7987"),
)
def test_versions(engine: EngineCell) -> None:
    trainer = engine.trainer
    trainer.call("keep", "a")
    for _ in range(3):
        trainer.call("step")
    trainer.call("keep", "b")
    engine.sync()
    with Load(engine.server.client, [list(prompt) for prompt in PROMPTS[:2]]) as load:
        load.wait_until_running()
        alternate(engine, ROUNDS)
    require_answered(engine, load)
    require_whole(engine, load.asked)


def require_answered(engine: EngineCell, load: Load) -> None:
    """Every request of the load has its answer.

    Raises:
        Violation: one has an error, or nothing.
    """
    failed = [asked for asked in load.asked if asked.answer is None]
    engine.evidence.update(requests=len(load.asked), failed=len(failed))
    if failed or load.unanswered:
        first = failed[0].failure if failed else "no answer within the deadline"
        raise Violation(Kind.RAISED, f"{len(failed) + load.unanswered} requests were not answered: {first}")


def alternate(engine: EngineCell, rounds: int) -> list[float]:
    """Transfer the weights that are kept as A and B in turn; the seconds that each transfer took.

    Raises:
        Violation: a transfer failed.
    """
    seconds = []
    for finished in range(rounds):
        engine.trainer.call("recall", "ab"[finished % 2])
        try:
            engine.sync()
        except WorkerFailed as error:
            raise Violation(Kind.RAISED, f"transfer {finished + 1} under load failed: {error}") from error
        seconds.append(float(engine.evidence["sync_seconds"]))
    engine.evidence["rounds"] = rounds
    return seconds


def require_whole(engine: EngineCell, asked: list[Asked]) -> None:
    """Each answer is A's or B's: compared token by token with both.

    Raises:
        Violation: one is neither's.
    """
    answers = [(each.prompt, each.answer) for each in asked if each.answer is not None]
    sequences = sorted({(*prompt, *answer.tokens) for prompt, answer in answers})
    by_weights = []
    for name in "ab":
        engine.trainer.call("recall", name)
        scores = engine.trainer.call("score", [list(sequence) for sequence in sequences])[0]
        by_weights.append(dict(zip(sequences, scores, strict=True)))
    bound = BOUND[engine.scenario.trainer.dtype]
    gaps = []
    for prompt, answer in answers:
        said = answer.prompt_logprobs + answer.logprobs
        own = [scores[(*prompt, *answer.tokens)] for scores in by_weights]
        gaps.append(min(max(abs(x - y) for x, y in zip(said, each, strict=True)) for each in own))
    mixed = sum(gap > bound for gap in gaps)
    engine.evidence.update(mixed=mixed, worst_gap=max(gaps, default=0.0))
    if mixed:
        raise Violation(
            Kind.STALE,
            f"{mixed} of {len(gaps)} answers belong to neither round: {max(gaps):.3g} from the nearer one",
        )


@check(
    "engine/flat",
    must="Ten transfers MUST leave the engine with the processes, and up to 64 MiB with the memory, that it had.",
    since="0.1",
    reports=("vllm#52950",),
)
def test_flat(engine: EngineCell) -> None:
    engine.sync()
    family = sorted(engine.server.family())
    before = resident(family)
    for _ in range(ROUNDS):
        engine.sync()
    after = resident(family)
    engine.evidence.update(
        rounds=ROUNDS, resident_before=before, resident_after=after, growth_bytes=after - before
    )
    if sorted(engine.server.family()) != family:
        raise Violation(
            Kind.LEAK, f"the engine had {len(family)} processes and has {len(engine.server.family())}"
        )
    if after - before > GROWTH_BYTES:
        raise Violation(
            Kind.LEAK, f"{ROUNDS} transfers left {(after - before) >> 20} MiB behind, the bound is 64 MiB"
        )


def resident(pids: list[int]) -> int:
    """Bytes of memory that processes hold."""
    return sum(psutil.Process(pid).memory_info().rss for pid in pids)
