"""The engine as an ``LLM`` of the trainer: in a process below rank 0, and within the trainer's own process."""

import pytest

from harness.conformance.engine import checkpoint
from harness.conformance.engine.local import local_trainers
from harness.conformance.engine.scoring import BOUND, Mismatch
from harness.conformance.engine.stage import PROMPTS
from harness.conformance.sync.scenarios import SyncScenario

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(900)]


@pytest.fixture
def ranks(stage, tmp_path):
    """Opens pools of local ranks, and closes them; the session's server makes room."""
    stage.close()
    opened = []

    def make(size):
        opened.append(local_trainers(size, tmp_path))
        return opened[-1]

    yield make
    for pool in opened:
        pool.close()


def mismatch(pool):
    answers = pool.call("complete", list(PROMPTS))[0]
    sequences = [[*prompt, *answer.tokens] for prompt, answer in zip(PROMPTS, answers, strict=True)]
    ours = pool.call("score", sequences)[0]
    return Mismatch.between(ours, [answer.prompt_logprobs + answer.logprobs for answer in answers])


def test_two_ranks_sync_a_tied_model_in_fp32_into_an_llm_below_rank_0(ranks, tmp_path):
    pool = ranks(2)
    trainer = SyncScenario("tiedllama", "lora", "zero3", 2, "fp32")
    pool.call("open_llm", str(checkpoint.save(trainer, tmp_path / "model")), "float32", True)
    for adapter in ("lora", "dora", "policy"):
        pool.call("build", SyncScenario("tiedllama", adapter, "zero3", 2, "fp32"))
        pool.call("step")
        assert mismatch(pool).max > BOUND["fp32"]
        assert pool.call("sync_local", adapter)[0] == adapter
        assert mismatch(pool).max <= BOUND["fp32"]


def test_an_engine_within_the_trainers_process_takes_weights_with_and_without_transport(ranks, tmp_path):
    pool = ranks(1)
    trainer = SyncScenario("llama", "lora", "zero3", 1, "fp32")
    pool.call("build", trainer)
    pool.call("open_llm", str(checkpoint.save(trainer, tmp_path / "model")), "float32", False)
    for method, arguments in (("sync_colocated", ()), ("sync_local", ("over-gloo",)), ("sync_colocated", ())):
        pool.call("step")
        assert mismatch(pool).max > BOUND["fp32"]
        pool.call(method, *arguments)
        assert mismatch(pool).max <= BOUND["fp32"]
