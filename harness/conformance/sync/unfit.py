"""Models that no sync can get right, each with a word that a refusal must hold for a person to understand it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.sync.small import adapted, lay_out, llama, lora

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.sync.scenarios import SyncScenario


@dataclass(frozen=True)
class Unfit:
    """One such model.

    Attributes:
        name: what is wrong with it.
        build: makes it on this rank, laid out as the scenario is; a collective.
        words: a refusal holds one of them.
    """

    name: str
    build: Callable[[SyncScenario], Any]
    words: tuple[str, ...]


def _packed(scenario: SyncScenario) -> Any:
    """4-bit quantisation stores two values in a byte, in a column."""
    base = llama(scenario)
    model = adapted(base, lora())
    layer = base.model.layers[1].self_attn.v_proj
    packed = torch.zeros(layer.weight.numel() // 2, 1, dtype=torch.uint8)
    layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    return lay_out(model, scenario)


def _unmergeable(scenario: SyncScenario) -> Any:
    from peft import PolyConfig

    config = PolyConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", r=2, n_tasks=2, n_skills=2)
    return lay_out(adapted(llama(scenario), config), scenario)


def _half_tied(scenario: SyncScenario) -> Any:
    return lay_out(adapted(llama(scenario, tied=True), lora(target_modules=["lm_head"])), scenario)


def _unknown(scenario: SyncScenario) -> Any:
    model = lay_out(adapted(llama(scenario), lora()), scenario)
    del model.peft_config["default"]
    return model


UNFIT = (
    Unfit("a base of packed integers", _packed, ("layers.1.self_attn.v_proj",)),
    Unfit("a method that merges into no weight", _unmergeable, ("poly", "Poly", "POLY")),
    Unfit("one half of a tied pair adapted", _half_tied, ("lm_head", "embed_tokens")),
    Unfit("an active adapter that does not exist", _unknown, ("default",)),
)
