"""Log-probabilities by transformers: what an engine that serves the right weights would say, up to its arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.conformance.sync.scenarios import SyncScenario

BOUND = {"bf16": 0.05, "fp32": 1e-4}
"""Largest difference of a token's log-probability that another order of the same arithmetic explains."""


def merged_of(model: Any, scenario: SyncScenario) -> Any:
    """The trainer's model of this moment, whole, with its adapter merged by PEFT. Collective when sharded."""
    from harness.conformance.sync.build import unsharded

    twin = unsharded(scenario).cpu()
    target = dict(twin.named_parameters())
    parameters = dict(model.named_parameters())
    with torch.no_grad(), _whole(list(parameters.values()), scenario):
        for name, parameter in parameters.items():
            target[name].copy_(parameter)
    return twin.merge_and_unload()


def _whole(parameters: list[Any], scenario: SyncScenario) -> Any:
    if scenario.sharding == "replicated":
        from contextlib import nullcontext

        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters(parameters)


def base_of(scenario: SyncScenario) -> Any:
    """The model that both sides started from."""
    from harness.conformance.sync.build import bare

    return bare(scenario)


def score(model: Any, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
    """Log-probability of every token but the first of each sequence."""
    model.eval()
    scored = []
    with torch.no_grad():
        for sequence in sequences:
            tokens = torch.tensor([list(sequence)])
            logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
            chosen = logits.log_softmax(-1).gather(-1, tokens[0, 1:, None])[:, 0]
            scored.append([float(value) for value in chosen])
    return scored


@dataclass(frozen=True)
class Mismatch:
    """How far two sets of log-probabilities of the same tokens lie apart.

    Attributes:
        mean: mean absolute difference.
        max: largest absolute difference.
        k3: Schulman's k3 estimate of the KL divergence, from tokens that the engine chose or was given.
        tokens: how many tokens.
    """

    mean: float
    max: float
    k3: float
    tokens: int

    @classmethod
    def between(cls, trainer: Sequence[Sequence[float]], engine: Sequence[Sequence[float]]) -> Mismatch:
        """Compare sequence by sequence; both sides have equally many tokens."""
        differences = [
            a - b
            for ours, theirs in zip(trainer, engine, strict=True)
            for a, b in zip(ours, theirs, strict=True)
        ]
        count = len(differences)
        return cls(
            sum(map(abs, differences)) / count,
            max(map(abs, differences)),
            sum(math.exp(d) - 1 - d for d in differences) / count,
            count,
        )
