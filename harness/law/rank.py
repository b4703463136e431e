"""Rank 0 of a trainer that does not exist: real code, fake tensors, a process group without peers.

It lives in a process of its own, where it may stop PyTorch from moving parameters between devices and answer the
questions about values that a fake tensor has no answer to.
"""

from __future__ import annotations

import gc
import io
import os
import warnings
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class FakeRank:
    """One rank of a ZeRO-3 trainer with LoRA on all linear layers.

    Args:
        world_size: how many ranks it believes there are.
    """

    def __init__(self, world_size: int) -> None:
        own = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1"}
        os.environ.update(own, MASTER_PORT="0", DS_ACCELERATOR="cpu")
        import torch.distributed as dist
        from torch.testing._internal.distributed.fake_pg import FakeStore

        warnings.simplefilter("ignore")  # of libraries about fake tensors and about each other
        self.world_size = world_size
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)

    def measure(self, config: dict[str, Any], dtype: str, adapter_rank: int) -> list[dict[str, Any]]:
        """Build a model and run every path over it.

        Args:
            config: as in a ``config.json`` of transformers.
            dtype: of base and adapter, ``bf16``, ``fp16`` or ``fp32``.
            adapter_rank: of the LoRA.

        Returns:
            One entry per path, all sizes in bytes.

        Raises:
            UsageError: the configuration makes no model, or one that cannot be synced.
        """
        from torch._subclasses.fake_tensor import FakeTensorMode

        from harness.law.paths import paths
        from harness.sync import ModuleGatherSource

        with FakeTensorMode():
            model = _build(config, DTYPES[dtype], adapter_rank)
            sizes = [meta.nbytes for meta in ModuleGatherSource(model).metadata()]
            shard = sum(_resident(live) for live in model.parameters())
            return [
                {
                    "path": name,
                    "model_bytes": sum(sizes),
                    "largest_bytes": max(sizes),
                    "shard_bytes": shard,
                    "peak_bytes": _peak(model, path),
                }
                for name, path in paths(self.world_size).items()
            ]


def _resident(parameter: Any) -> int:
    shard = getattr(parameter, "ds_tensor", parameter)
    return int(shard.nbytes)


def _peak(model: Any, path: Callable[[Any], Any]) -> int:
    from harness.memory.fake import FakeMeter

    gc.collect()
    with _answers(), FakeMeter()() as memory:
        for _ in path(model):
            pass
    return memory.peak_bytes


def _build(config: dict[str, Any], dtype: str, adapter_rank: int) -> Any:
    """The model in shards; every parameter is made in the dtype and on the device where it stays."""
    import deepspeed
    import torch
    from peft import LoraConfig, get_peft_model
    from torch import nn
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        # A fake parameter cannot be swapped for a converted one, and there is nothing to convert.
        with patch.object(nn.Module, "_apply", lambda self, *_, **__: self), no_init_weights():
            kept = {name: value for name, value in config.items() if name not in ("dtype", "torch_dtype")}
            base = AutoModelForCausalLM.from_config(AutoConfig.for_model(**kept), dtype=getattr(torch, dtype))
            lora = LoraConfig(r=adapter_rank, target_modules="all-linear", init_lora_weights=False)
            model = get_peft_model(base, lora, autocast_adapter_dtype=False)
    except Exception as error:
        raise UsageError(
            f"transformers and PEFT make no model of this configuration: {type(error).__name__}: {error}"
        ) from error
    finally:
        torch.set_default_dtype(before)
    zero = {"stage": 3, "stage3_param_persistence_threshold": 0}
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": zero}
    with redirect_stdout(io.StringIO()):  # DeepSpeed says that its op is there
        deepspeed.zero.Init(module=model, config_dict_or_path=settings)
    return model


@contextmanager
def _answers() -> Iterator[None]:
    """Answer what a fake tensor cannot: equal is equal, and no status byte says that a rank has failed."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class Answers(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            del types
            if func is torch.ops.aten._local_scalar_dense.default:  # noqa: SLF001 - an operator's name
                return 0
            if func is torch.ops.aten.equal.default:
                return True
            return func(*args, **(kwargs or {}))

    with Answers():  # type: ignore[no-untyped-call]
        yield
