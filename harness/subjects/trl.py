"""TRL's released weight sync as a subject: the code that a trainer runs, driven without an inference server.

``VLLMGeneration._iter_named_params`` reads three attributes; they are set on an instance made without ``__init__``,
which would connect to vLLM. Everything else is TRL's own code as installed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from harness.conformance.sync.subject import SyncContext


def iter_named_params(model: Any, context: SyncContext) -> Iterator[tuple[str, torch.Tensor]]:
    """One pass of TRL's generator over ``model`` (written against TRL 1.16)."""
    from trl.distributed import DistributedBackend
    from trl.generation.vllm_generation import VLLMGeneration

    zero3 = SimpleNamespace(zero_stage=3) if context.sharding == "zero3" else None
    fsdp = SimpleNamespace(fsdp_version=2) if context.sharding == "fsdp2" else None
    accelerator = SimpleNamespace(
        device=context.device,
        is_main_process=context.rank == 0,
        state=SimpleNamespace(deepspeed_plugin=zero3, fsdp_plugin=fsdp),
    )
    generation: Any = object.__new__(VLLMGeneration)
    generation.model = model
    generation.accelerator = accelerator
    generation._dist = DistributedBackend(accelerator)  # noqa: SLF001 - the released code, reached where it is
    passes: Iterator[tuple[str, torch.Tensor]] = generation._iter_named_params()  # noqa: SLF001
    return passes
