"""A family of models that differ in depth and width alone, sharded as a scenario says: what a law is fitted over.

All carry plain LoRA on their linear layers, whatever else the scenario is about.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.sync.build import DTYPE
from harness.conformance.sync.consumer import discard
from harness.memory import measure
from harness.memory.law import Sample

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.conformance.sync.scenarios import SyncScenario

# Vocabulary and width make the embedding the largest tensor in every member, so that it does not change with depth;
# a layer is a good part of it, so that a peak that grows by layers shows within a few of them. Below about eight layers
# a source that works ahead has not filled its buffers yet: there the peak grows with depth, and is flat beyond.
VOCABULARY, HEADS = 4096, 4
SHALLOW, DEEP = 8, 16
MEMBERS = ((SHALLOW, 192), (DEEP, 192), (SHALLOW, 256), (DEEP, 256))  # depth, width


@dataclass(frozen=True)
class Member:
    """One model of the family.

    Attributes:
        depth: number of decoder layers.
        width: hidden size; the intermediate size is twice that.
        scenario: gives the sharding, the dtype and the device.
    """

    depth: int
    width: int
    scenario: SyncScenario

    @property
    def layer_bytes(self) -> int:
        """Bytes of the base tensors of one decoder layer: four square projections, three of the MLP, two norms."""
        return (4 * self.width**2 + 3 * self.width * 2 * self.width + 2 * self.width) * self._itemsize

    @property
    def largest_bytes(self) -> int:
        """Bytes of the embedding."""
        return VOCABULARY * self.width * self._itemsize

    @property
    def _itemsize(self) -> int:
        return DTYPE[self.scenario.dtype].itemsize

    def measured(
        self, model: Any, source: Callable[[Any], Iterable[tuple[str, torch.Tensor]]], *, passes: int = 2
    ) -> Sample:
        """The peak of a pass above entry, beside the sizes that it is explained by.

        Args:
            model: what :meth:`build` made.
            source: begins a pass over a model.
            passes: the lowest peak of them counts. The first in a process warms collectives, products of these
                shapes, lazy imports and the meter itself; where a model of this width went before, one is enough.
        """
        peaks = []
        for _ in range(passes):
            with measure(self.scenario.device) as memory:
                discard(source(model))
            peaks.append(memory.peak_bytes)
        return Sample(self.depth, self.layer_bytes, self.largest_bytes, min(peaks))

    def build(self) -> Any:
        """The ``PeftModel``, sharded; a collective. Its values are random, and the same on every rank."""
        from peft import LoraConfig, get_peft_model
        from transformers import LlamaConfig, LlamaForCausalLM

        torch.manual_seed(self.depth)
        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=self.width,
            intermediate_size=2 * self.width,
            num_hidden_layers=self.depth,
            num_attention_heads=HEADS,
            num_key_value_heads=HEADS,
            max_position_embeddings=64,
        )
        base = LlamaForCausalLM(config).to(DTYPE[self.scenario.dtype])
        lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
        model = get_peft_model(base, lora, autocast_adapter_dtype=False).to(self.scenario.device)
        return _sharded(model, self.scenario.sharding)


def family(scenario: SyncScenario) -> Sequence[Member]:
    """The members, for one scenario."""
    return [Member(depth, width, scenario) for depth, width in MEMBERS]


def _sharded(model: Any, sharding: str) -> Any:
    if sharding == "zero3":
        import deepspeed

        config = {
            "train_micro_batch_size_per_gpu": 1,
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
        }
        deepspeed.zero.Init(module=model, config_dict_or_path=config)
    elif sharding == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    return model
