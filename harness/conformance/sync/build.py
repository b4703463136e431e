"""Build the trainer of a scenario on this rank: a small random-initialised model, its adapter, its sharding.

Everything follows from the scenario and a fixed seed, so every rank, every process and the oracle's unsharded twin
hold the same weights without any exchange.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from harness.conformance.sync.scenarios import SyncScenario

SEED = 20261
DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16}

# Small enough to build in a fraction of a second; large enough that the whole model (6 untied layers: 6.0 M
# parameters) is 5.7 times its largest tensor, so that a full gather and a module-wise one cannot be confused.
VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS = 4096, 256, 512, 6, 4


@dataclass(frozen=True)
class Trainer:
    """One rank's trainer.

    Attributes:
        model: the ``PeftModel`` whose parameters are sharded as the scenario says.
        engine: the DeepSpeed engine around it; None when the model is replicated.
    """

    model: Any
    engine: Any

    def forward(self) -> torch.Tensor:
        """Logits of a fixed batch, shape ``(1, 12, vocabulary)``; a collective under ZeRO-3."""
        runner = self.model if self.engine is None else self.engine
        device = next(self.model.parameters()).device
        tokens = torch.arange(12, device=device)[None] * 331 % VOCABULARY
        training = self.model.training
        runner.eval()
        with torch.no_grad():
            logits: torch.Tensor = runner(input_ids=tokens, use_cache=False).logits.clone()
        runner.train(training)
        return logits

    def close(self) -> None:
        """Give back what the engine holds. The process group stays."""
        if self.engine is not None:
            self.engine.destroy()


def bare(scenario: SyncScenario) -> Any:
    """The scenario's model before any adapter, whole, on CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=scenario.model == "tiedllama",
    )
    return LlamaForCausalLM(config).to(DTYPE[scenario.dtype])


def unsharded(scenario: SyncScenario) -> Any:
    """The scenario's model with its adapter, whole, on its device: what every rank starts from."""
    from peft import LoraConfig, get_peft_model

    base = bare(scenario)
    policy = scenario.adapter == "policy"
    adapter = LoraConfig(
        r=8,
        lora_alpha=16,
        target_modules="all-linear",
        use_dora=scenario.adapter == "dora",
        modules_to_save=["model.norm"] if policy else None,
    )
    model = get_peft_model(
        base, adapter, adapter_name="policy" if policy else "default", autocast_adapter_dtype=False
    )
    _train_without_training(model)
    return model.to(scenario.device)


def _train_without_training(model: Any) -> None:
    """Move every trainable parameter off its initial value, as a few optimizer steps would."""
    noise = torch.Generator().manual_seed(SEED + 1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                shift = torch.empty(parameter.shape, dtype=torch.float32).normal_(0, 0.05, generator=noise)
                parameter.add_(shift.to(parameter.dtype))


def trainer(scenario: SyncScenario) -> Trainer:
    """Build the scenario's trainer on this rank. A collective when it is sharded.

    Args:
        scenario: its world size is the size of the default process group.
    """
    model = unsharded(scenario)
    if scenario.sharding == "replicated":
        return Trainer(model, None)
    import deepspeed

    if scenario.device == "cuda":  # DeepSpeed takes its device from here; ranks may share one
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=_zero3(scenario.dtype))
    return Trainer(engine.module, engine)


def _zero3(dtype: str) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": dtype == "bf16"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": 0,  # or small parameters are never sharded
            "reduce_bucket_size": 1_000_000,  # the default reserves a buffer of 500 M elements
        },
    }
