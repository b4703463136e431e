"""What a server says after a transfer: the trainer's weights, all of them, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.conformance.check import check
from harness.conformance.engine.scoring import BOUND, Mismatch
from harness.conformance.verdict import Kind, Violation
from harness.ipc import WorkerFailed
from harness.subjects.vllm import ServerFailed
from harness.subjects.vllm_client import Unreachable

if TYPE_CHECKING:
    from harness.conformance.engine.stage import EngineCell

pytestmark = pytest.mark.timeout(900)


@check(
    "engine/smoke",
    must="A server MUST start, answer a completion, and take one transfer.",
    since="0.1",
    smoke=True,
)
def test_smoke(engine: EngineCell) -> None:
    try:
        engine.answers()
        engine.sync()
    except (ServerFailed, Unreachable, WorkerFailed) as error:
        raise Violation(Kind.BROKEN, str(error)) from error


@check(
    "engine/parity",
    must=(
        "After a step of training and a transfer, the log-probabilities that the engine gives, of prompt and answer,"
        " MUST equal those of merge_and_unload() in transformers, within 0.05 in bf16 and 1e-4 in fp32."
    ),
    since="0.1",
    reports=("trl#2698", "trl#2856", "trl#5312"),
)
def test_parity(engine: EngineCell) -> None:
    engine.trainer.call("step")
    engine.sync()
    _require_parity(engine, engine.mismatch(), "after a transfer")


@check(
    "engine/round-trip",
    must="Going from weights A to B and back to A, the engine MUST give A's log-probabilities again.",
    since="0.1",
    reports=("vllm#57022", "tokenspeed#1373", "SkyRL#1680", "SkyRL#1345"),
)
def test_round_trip(engine: EngineCell) -> None:
    engine.trainer.call("keep", "a")
    engine.sync()
    a = engine.scores()
    engine.trainer.call("step")
    engine.sync()
    b = engine.scores()
    engine.trainer.call("recall", "a")
    engine.sync()
    again = engine.scores()
    apart, back = Mismatch.between(a, b), Mismatch.between(a, again)
    engine.evidence.update(a_to_b=apart.max, a_to_a=back.max)
    bound = BOUND[engine.scenario.trainer.dtype]
    if back.max > bound:
        raise Violation(
            Kind.STALE,
            f"back at A the engine differs from A by {back.max:.3g}, the bound is {bound}; B by {apart.max:.3g}",
        )


@check(
    "engine/no-op",
    must="A transfer that is said to have succeeded MUST have changed what the engine serves.",
    since="0.1",
    reports=("vllm#57022", "tokenspeed#1373"),
)
def test_no_op(engine: EngineCell) -> None:
    engine.sync()
    before = engine.scores()
    for _ in range(3):
        engine.trainer.call("step")
    version = engine.sync()
    moved = Mismatch.between(before, engine.scores())
    named = engine.server.client.weight_version()
    engine.evidence.update(moved=moved.max, named=named)
    if moved.max == 0.0:
        raise Violation(
            Kind.SILENT, "the transfer was said to have succeeded, and not one log-probability changed"
        )
    if named != version:
        raise Violation(Kind.STALE, f"the weights were sent as {version} and the engine calls them {named}")


@check(
    "engine/empty-update",
    should="An update in which no weight arrived SHOULD NOT be given a new version and answered as a success.",
    since="0.1",
    reports=("vllm#57022", "tokenspeed#1373"),
)
def test_empty_update(engine: EngineCell) -> None:
    client = engine.server.client
    before = client.weight_version()
    started = client.ask("POST", "/start_weight_update")
    finished = client.ask("POST", "/finish_weight_update", {"weight_version": "never-sent"})
    after = client.weight_version()
    engine.evidence.update(started=started.status, finished=finished.status, before=before, after=after)
    if finished.status == 200 and after == "never-sent":
        raise Violation(
            Kind.SILENT,
            "start and finish without an update between them were answered 200,"
            f" and the weights that were {before!r} are now called {after!r}",
        )


def _require_parity(engine: EngineCell, found: Mismatch, when: str) -> None:
    bound = BOUND[engine.scenario.trainer.dtype]
    engine.evidence.update(
        mean_logprob_gap=found.mean, max_logprob_gap=found.max, k3=found.k3, tokens=found.tokens, bound=bound
    )
    if found.max > bound:
        raise Violation(
            Kind.WRONG,
            f"{when} the engine's log-probabilities differ from the trainer's by up to {found.max:.3g}"
            f" (mean {found.mean:.3g}, k3 {found.k3:.3g}); the bound is {bound}",
        )
