"""A trainer rank that holds an ``LLM``: the engine in the trainer's process, or just below it."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.conformance.engine.trainers import HEAVY, START_S, TrainerRank
from harness.ipc import WorkerPool
from harness.subjects.vllm import Layout, engine_environment
from harness.subjects.vllm_client import Completion

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = ("vllm.entrypoints.llm", "vllm.v1.worker.cpu_worker")
"""What an ``LLM`` imports, a dozen seconds of it."""


class LocalRank(TrainerRank):
    """Rank 0 opens the engine; the other ranks take part in what is collective and return None."""

    _llm: Any = None

    def open_llm(self, model: str, dtype: str, below: bool) -> None:
        """Start an engine.

        Args:
            model: folder of a checkpoint.
            dtype: ``bfloat16`` or ``float32``.
            below: in a process below rank 0, as ``LLM`` does by default; else within rank 0, as colocated trainers
                do, where the trainer must have one rank.
        """
        if self.rank != 0:
            return
        os.environ.update(engine_environment(Layout()), VLLM_ENABLE_V1_MULTIPROCESSING=str(int(below)))
        from vllm import LLM

        self._llm = LLM(
            model,
            dtype=dtype,
            enforce_eager=True,
            max_model_len=64,
            max_num_seqs=16,
            weight_transfer_config={"backend": "gloo"},
        )

    def sync_local(self, version: str, seconds: float = 30.0) -> Any:
        """One transfer into the engine that rank 0 holds."""
        from harness.sync import ModuleGatherSource
        from harness.transfer import GroupPeers, LocalEngine, TrainerEngine

        source = ModuleGatherSource(self._trainer.model)
        peers = GroupPeers(seconds)
        sender = TrainerEngine(source, LocalEngine(self._llm), peers=peers, seconds=seconds)
        sent = sender.sync(version)
        sender.close()
        return None if sent is None else sent.version

    def sync_colocated(self) -> int:
        """Load straight into the engine within this process."""
        from harness.sync import ModuleGatherSource
        from harness.transfer.vllm_bridge import load_colocated

        return load_colocated(self._llm, ModuleGatherSource(self._trainer.model))

    def complete(self, prompts: list[list[int]], max_tokens: int = 8) -> list[Completion] | None:
        """What the engine makes of prompts, greedily; None beside rank 0."""
        if self._llm is None:
            return None
        from vllm import SamplingParams

        sampling = SamplingParams(
            temperature=0, max_tokens=max_tokens, min_tokens=max_tokens, logprobs=0, prompt_logprobs=0
        )
        requests = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self._llm.generate(requests, sampling, use_tqdm=False)
        return [_completion(output) for output in outputs]


def _completion(output: Any) -> Completion:
    answer = output.outputs[0]
    tokens = list(answer.token_ids)
    scored = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return Completion(
        tokens,
        [row[token].logprob for token, row in zip(tokens, answer.logprobs, strict=True)],
        [row[token].logprob for token, row in scored],
    )


def local_trainers(size: int, folder: Path) -> WorkerPool:
    """As ``trainers``, of ranks that can hold an engine. vLLM is imported once, before the ranks are forked."""
    return WorkerPool(
        partial(LocalRank, size=size, folder=str(folder)),
        size,
        name="trainer",
        timeout=300.0,
        start_timeout=START_S,
        start_method="forkserver",
        preload=(*HEAVY, *ENGINE),
    )
