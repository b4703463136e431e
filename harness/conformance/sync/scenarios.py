"""The scenarios of weight sync: model × adapter × sharding × world size × dtype × device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

MODELS = ("llama", "tiedllama")
ADAPTERS = ("lora", "policy", "dora")
SHARDINGS = (("replicated", 1), ("zero3", 1), ("zero3", 2))
DTYPES = ("fp32", "bf16")


@dataclass(frozen=True)
class SyncScenario:
    """One set-up of a trainer.

    Attributes:
        model: ``llama``, or ``tiedllama`` whose head shares the embedding's weight.
        adapter: ``lora`` on all linear layers; ``policy``, the same under the adapter name ``policy`` with a trained
            copy of one module beside it (``modules_to_save``); ``dora`` on all linear layers.
        sharding: ``replicated`` (every rank holds all) or ``zero3`` (DeepSpeed ZeRO stage 3).
        world_size: number of trainer ranks.
        dtype: ``fp32`` or ``bf16``, of base and adapter alike.
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

    def missing(self) -> str | None:
        needed = ["torch", "transformers", "peft"] + ["deepspeed"] * (self.sharding == "zero3")
        absent = [library for library in needed if find_spec(library) is None]
        if absent:
            return f"{', '.join(absent)} not installed: pip install 'lockstep-harness[zero3]'"
        if self.device == "cuda" and not _cuda():
            return "torch sees no CUDA device on this machine"
        return None


def full(device: str) -> Sequence[SyncScenario]:
    """Every combination, grouped so that neighbours share a world size."""
    return [
        SyncScenario(model, adapter, sharding, world, dtype, device)
        for (sharding, world), model, adapter, dtype in product(SHARDINGS, MODELS, ADAPTERS, DTYPES)
    ]


def default(device: str) -> Sequence[SyncScenario]:
    """A set that meets every pair of (adapter, sharding) and every single value of the other dimensions."""
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


def _cuda() -> bool:
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        return False
    import torch

    return torch.cuda.is_available()
