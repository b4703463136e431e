"""Build the trainer of a scenario on this rank: a small random-initialised model, its adapter, its sharding.

Everything follows from the scenario and a fixed seed, so every rank, every process and the oracle's unsharded twin
hold the same weights without any exchange.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.sync.adapters import adapt
from harness.conformance.sync.models import BUILDERS, tokens

if TYPE_CHECKING:
    from harness.conformance.sync.scenarios import SyncScenario

SEED = 20261
DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "mixed": torch.bfloat16}
PERSISTENT = 5_000  # elements: norms, biases and small adapters stay whole between forwards


@dataclass(frozen=True)
class Trainer:
    """One rank's trainer.

    Attributes:
        model: the ``PeftModel`` whose parameters are sharded as the scenario says.
        runner: what its forward goes through: the model, DDP or the DeepSpeed engine around it.
        optimizer: torch's optimizer; under DeepSpeed the engine's, which wraps one.
    """

    model: Any
    runner: Any
    optimizer: Any

    @property
    def engine(self) -> Any:
        """The DeepSpeed engine that drives the steps; None without one."""
        return self.runner if hasattr(self.runner, "backward") else None

    def forward(self) -> torch.Tensor:
        """Logits of a fixed batch; a collective when sharded."""
        training = self.model.training
        self.runner.eval()
        with torch.no_grad():
            logits: torch.Tensor = self.runner(input_ids=self._tokens(), use_cache=False).logits.clone()
        self.runner.train(training)
        return logits

    def step(self) -> None:
        """One optimizer step on a fixed batch; a collective when there are several ranks."""
        self.runner.train()
        given = self._tokens()
        loss = self.runner(input_ids=given, labels=given, use_cache=False).loss
        if self.engine is not None:
            self.runner.backward(loss)
            self.runner.step()
        else:
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def close(self) -> None:
        """Give back what the engine holds. The process group stays."""
        if self.engine is not None:
            self.runner.destroy()

    def _tokens(self) -> torch.Tensor:
        return tokens(next(self.model.parameters()).device)


def bare(scenario: SyncScenario) -> Any:
    """The scenario's model before any adapter, whole, on CPU."""
    torch.manual_seed(SEED)
    return BUILDERS[scenario.model]().to(DTYPE[scenario.dtype])


def unsharded(scenario: SyncScenario) -> Any:
    """The scenario's model with its adapter, whole, on its device: what every rank starts from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT has advice about several of these set-ups
        model = adapt(bare(scenario), scenario.model, scenario.adapter, exact=scenario.dtype != "mixed")
    _train_without_training(model)
    return model.to(scenario.device)


def _train_without_training(model: Any) -> None:
    """Move every adapter parameter off its initial value, as a few optimizer steps would; frozen ones too."""
    noise = torch.Generator().manual_seed(SEED + 1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad or ".ref" in name:
                shift = torch.empty(parameter.shape, dtype=torch.float32).normal_(0, 0.05, generator=noise)
                parameter.add_(shift.to(parameter.dtype))


def trainer(scenario: SyncScenario) -> Trainer:
    """Build the scenario's trainer on this rank. A collective when there are several ranks.

    Args:
        scenario: its world size is the size of the default process group.
    """
    model = unsharded(scenario)
    if scenario.sharding in {"zero3", "zero3p"}:
        return _deepspeed(model, scenario)
    runner: Any = model
    if scenario.sharding == "fsdp2":
        _fully_shard(model)
    elif scenario.sharding == "ddp":
        runner = torch.nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    return Trainer(model, runner, _optimizer(model))


def _optimizer(model: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def _fully_shard(model: Any) -> None:
    """One group for each decoder layer and one for the rest, as trainers do."""
    from torch.distributed.fsdp import fully_shard

    layers = next((module for name, module in model.named_modules() if name.endswith((".layers", ".h"))), ())
    for layer in layers:
        fully_shard(layer)
    fully_shard(model, reshard_after_forward=True)


def _deepspeed(model: Any, scenario: SyncScenario) -> Trainer:
    import deepspeed

    if scenario.device == "cuda":  # DeepSpeed takes its device from here; ranks may share one
        os.environ["LOCAL_RANK"] = str(torch.cuda.current_device())
    threshold = PERSISTENT if scenario.sharding == "zero3p" else 0
    config = _zero3(scenario.dtype, threshold)
    engine, *_ = deepspeed.initialize(model=model, optimizer=_optimizer(model), config=config)
    return Trainer(engine.module, engine, engine.optimizer)


def _zero3(dtype: str, threshold: int) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": dtype == "bf16"},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {
            "stage": 3,
            "stage3_param_persistence_threshold": threshold,  # at 0 even the smallest parameters are sharded
            "reduce_bucket_size": 1_000_000,  # the default reserves a buffer of 500 M elements
        },
    }
