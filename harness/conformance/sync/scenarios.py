"""The scenarios of weight sync: model × adapter × sharding × world size × dtype × device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import combinations, product
from typing import TYPE_CHECKING

from harness.conformance.sync.adapters import CARRIES

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = tuple(CARRIES)
ADAPTERS = tuple(dict.fromkeys(adapter for carried in CARRIES.values() for adapter in carried))
SHARDINGS = (
    ("replicated", 1),
    ("zero3", 1),
    ("ddp", 2),
    ("zero3", 2),
    ("zero3p", 2),
    ("fsdp2", 2),
    ("zero3", 4),
)
SPREAD = (
    "llama-lora-*",
    *(f"{model}-*" for model in MODELS if not model.endswith("llama")),
    *(f"*llama-{adapter}-*" for adapter in ADAPTERS if adapter not in {"lora", "policy", "dora"}),
)
"""For checks that take long: each model, adapter and layout, without those that others of the default set stand for."""
DTYPES = ("fp32", "bf16", "mixed")


@dataclass(frozen=True)
class SyncScenario:
    """One set-up of a trainer.

    Attributes:
        model: ``llama``; ``tiedllama``, whose head shares the embedding's weight; ``gpt2`` (Conv1D, biases, tied);
            ``moe`` (experts stacked in one parameter each); ``convnet`` (convolutions, an embedding, buffers).
        adapter: ``lora`` on the linear layers, and on whatever else of the model LoRA can adapt; ``policy``, the same
            under the adapter name ``policy`` with a trained copy of one module beside it (``modules_to_save``);
            ``dora``; ``rslora`` with patterns of ranks and alphas; ``two`` active beside a frozen ``ref``; ``bias``
            that is trained; ``tokens``, some rows of the embedding; ``ia3`` and ``loha``, by PEFT's own merge.
        sharding: ``replicated`` (every rank holds all), ``ddp``, ``zero3`` (DeepSpeed ZeRO stage 3), ``zero3p`` (the
            same, small parameters stay whole) or ``fsdp2`` (``fully_shard``).
        world_size: number of trainer ranks.
        dtype: ``fp32`` or ``bf16``, of base and adapter alike, or ``mixed``: float32 adapters on a bf16 base.
        device: ``cpu`` or ``cuda``.
    """

    model: str
    adapter: str
    sharding: str
    world_size: int
    dtype: str
    device: str = "cpu"

    @property
    def id(self) -> str:
        place = self.sharding if self.sharding == "replicated" else f"{self.sharding}x{self.world_size}"
        name = f"{self.model}-{self.adapter}-{place}-{self.dtype}"
        return name if self.device == "cpu" else f"{name}-{self.device}"

    @property
    def ranks(self) -> int:
        return self.world_size

    @property
    def uses_deepspeed(self) -> bool:
        return self.sharding in {"zero3", "zero3p"}

    def missing(self) -> str | None:
        needed = ["torch", "transformers", "peft"] + ["deepspeed"] * self.uses_deepspeed
        absent = [library for library in needed if find_spec(library) is None]
        if absent:
            return f"{', '.join(absent)} not installed: pip install 'lockstep-harness[zero3]'"
        if self.device == "cuda" and not _cuda():
            return "torch sees no CUDA device on this machine"
        return None


@lru_cache(maxsize=2)
def full(device: str) -> Sequence[SyncScenario]:
    """The default set and what it lacks, so that every pair of values that can meet does meet somewhere.

    Grouped so that neighbours share a world size.
    """
    chosen = list(default(device))
    offered = [
        SyncScenario(model, adapter, sharding, world, dtype, device)
        for (sharding, world), model, dtype in product(SHARDINGS, MODELS, DTYPES)
        for adapter in CARRIES[model]
        if _can_meet(sharding, adapter, dtype)
    ]
    left = {pair for each in offered for pair in _pairs(each)} - {p for each in chosen for p in _pairs(each)}
    while left:
        best = max(offered, key=lambda each: len(_pairs(each) & left))
        chosen.append(best)
        left -= _pairs(best)
    return sorted(chosen, key=lambda each: SHARDINGS.index((each.sharding, each.world_size)))


def default(device: str) -> Sequence[SyncScenario]:
    """A set that meets every pair of (lora, policy, dora) and (replicated, zero3x1, zero3x2), and some more."""
    chosen = (
        ("llama", "lora", "replicated", 1, "fp32"),
        ("tiedllama", "policy", "replicated", 1, "bf16"),
        ("llama", "dora", "replicated", 1, "bf16"),
        ("llama", "lora", "zero3", 1, "bf16"),
        ("llama", "policy", "zero3", 1, "fp32"),
        ("tiedllama", "dora", "zero3", 1, "fp32"),
        ("llama", "lora", "zero3", 2, "bf16"),
        ("tiedllama", "lora", "zero3", 2, "fp32"),
        ("llama", "policy", "zero3", 2, "bf16"),
        ("llama", "dora", "zero3", 2, "bf16"),
    )
    return [SyncScenario(*each, device=device) for each in chosen]


def _can_meet(sharding: str, adapter: str, dtype: str) -> bool:
    """Whether a trainer can have all three: mixed dtypes are not for every engine.

    FSDP2 wants one dtype in a group of parameters; DeepSpeed wants one for all that is trained, and the copies of
    ``policy`` and the biases of ``bias`` are trained in the base's.
    """
    if dtype != "mixed":
        return True
    return sharding != "fsdp2" and not (sharding.startswith("zero3") and adapter in {"policy", "bias"})


def _pairs(scenario: SyncScenario) -> frozenset[tuple[tuple[str, object], ...]]:
    """The pairs of values that meet in a scenario."""
    values = (
        ("model", scenario.model),
        ("adapter", scenario.adapter),
        ("place", (scenario.sharding, scenario.world_size)),
        ("dtype", scenario.dtype),
    )
    return frozenset(combinations(values, 2))


def _cuda() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    import torch

    return torch.cuda.is_available()
