"""The scenarios of engine checks: a trainer's scenario × how the engine is spread over processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING

from harness.conformance.sync.scenarios import SyncScenario
from harness.subjects.vllm import Layout

if TYPE_CHECKING:
    from collections.abc import Sequence

SINGLE, TENSOR, DATA = Layout(), Layout(tensor_parallel=2), Layout(data_parallel=2)


@dataclass(frozen=True)
class EngineScenario:
    """One trainer, one engine.

    Attributes:
        trainer: model, adapter, sharding and dtype of the trainer; the engine serves the same model and dtype.
        layout: the engine's processes.
    """

    trainer: SyncScenario
    layout: Layout = field(default_factory=Layout)

    @property
    def id(self) -> str:
        return f"{self.trainer.id}-{self.layout}"

    @property
    def sharding(self) -> str:
        """Of the trainer: ``zero3`` has DeepSpeed's op built before the first cell."""
        return self.trainer.sharding

    @property
    def ranks(self) -> int:
        """The check runs in the controller; the trainer's ranks are processes of the stage."""
        return 0

    def missing(self) -> str | None:
        if find_spec("vllm") is None:
            return "vLLM is not installed: see docs/engine.md (tox -e engine builds an environment with it)"
        return self.trainer.missing()


def _trainer(model: str, adapter: str, dtype: str) -> SyncScenario:
    return SyncScenario(model, adapter, "zero3", 2, dtype)


def default(device: str) -> Sequence[EngineScenario]:
    """One trainer, an engine of one process. CPU only: the transfer is for machines without a GPU."""
    return [EngineScenario(_trainer("llama", "lora", "bf16"), SINGLE)] if device == "cpu" else []


def full(device: str) -> Sequence[EngineScenario]:
    """``default``, an engine of two processes spread either way, and every model, adapter and dtype on one."""
    if device != "cpu":
        return []
    spread = [EngineScenario(_trainer("llama", "lora", "bf16"), layout) for layout in (TENSOR, DATA)]
    singles = [
        EngineScenario(_trainer(model, adapter, dtype))
        for model in ("llama", "tiedllama")
        for dtype in ("bf16", "fp32")
        for adapter in ("lora", "policy", "dora")
    ]
    return [*default(device), *spread, *(each for each in singles if each not in default(device))]
