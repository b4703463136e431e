"""One rank of the benchmark's trainer: a Llama of 384 MiB in bf16 with LoRA on all linear layers, under ZeRO-3.

The object lives in a worker of ``harness.ipc``; the benchmark calls its methods on all ranks at once. It imports
heavy libraries on construction, after the environment says which rank this is.
"""

from __future__ import annotations

import gc
import hashlib
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Figures:
    """What one pass cost on one rank."""

    seconds: float
    peak_bytes: int
    retained_bytes: int
    wire_bytes: int
    tensors: int


class TrainerRank:
    """Builds the model, shards it, and runs passes of each source over it.

    Args:
        rank: this rank.
        ranks: world size.
        folder: an empty folder that the ranks share, for their rendezvous.
        layers: decoder layers of the model; 16 make 384 MiB.
    """

    def __init__(self, rank: int, ranks: int, folder: str, layers: int) -> None:
        given = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "MASTER_ADDR": "127.0.0.1"}
        os.environ.update({name: str(value) for name, value in given.items()})
        os.environ.update(OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1")
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
        import torch
        import torch.distributed as dist

        torch.set_num_threads(1)
        store = dist.FileStore(str(Path(folder) / f"store-{layers}"), ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
        self.rank = rank
        self.engine = _engine(layers)
        self.model = self.engine.module

    def sizes(self) -> dict[str, int]:
        """Bytes of the model, of its largest tensor, and of this rank's shard."""
        from harness.sync import ModuleGatherSource

        sizes = [meta.nbytes for meta in ModuleGatherSource(self.model).metadata()]
        shard = sum(live.ds_tensor.nbytes for live in self.model.parameters())
        return {"model_bytes": sum(sizes), "largest_bytes": max(sizes), "shard_bytes": shard}

    def one_pass(self, source: str) -> float:
        """Seconds of one pass whose consumer keeps nothing."""
        import torch.distributed as dist

        dist.barrier()
        start = time.perf_counter()
        for _ in self._stream(source):
            pass
        dist.barrier()
        return time.perf_counter() - start

    def measured_pass(self, source: str) -> dict[str, Any]:
        """Figures of one pass, by the memory meter and by counting what collectives are given."""
        from harness.memory import measure

        start = time.perf_counter()
        with _Wire() as wire, measure() as memory:
            tensors = _consume(self._stream(source))
        seconds = time.perf_counter() - start
        figures = Figures(seconds, memory.peak_bytes, memory.retained_bytes, wire.sent, tensors)
        return {**asdict(figures), "top": [str(site) + f" {site.bytes}" for site in memory.top(3)]}

    def timeline(self, source: str, file: str) -> list[tuple[float, int]]:
        """Live bytes above entry over the seconds of one pass, sampled every few milliseconds by memray.

        Args:
            source: as for ``one_pass``.
            file: where memray may write; must not exist.
        """
        import memray
        import torch.distributed as dist

        gc.collect()
        dist.barrier()
        with memray.Tracker(file, memory_interval_ms=2):
            _consume(self._stream(source))
        samples = list(memray.FileReader(file).get_memory_snapshots())
        return [((sample.time - samples[0].time) / 1000, sample.heap) for sample in samples]

    def digest(self) -> str:
        """Digest of this rank's shard of every base parameter: what a sync must never change."""
        import torch

        seen = hashlib.sha256()
        for name, live in self.model.named_parameters():
            if "lora_" not in name:
                seen.update(live.ds_tensor.detach().view(torch.uint8).numpy().tobytes())
        return seen.hexdigest()

    def rounds(self, source: str, count: int) -> str:
        """Digest of the base after a number of passes."""
        for _ in range(count):
            for _ in self._stream(source):
                pass
        gc.collect()
        return self.digest()

    def _stream(self, source: str) -> Iterable[tuple[str, Any]]:
        from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource

        if source == "module-wise":
            return ModuleGatherSource(self.model)
        if source == "to-the-sender":
            return SenderGatherSource(self.model)
        if source == "full-gather":
            return FullGatherSource(self.model)
        return {"trl": _trl, "bare-all-gather": _bare_all_gather, "bare-gather": _bare_gather}[source](
            self.model
        )


def _consume(stream: Iterable[tuple[str, Any]]) -> int:
    """Read a stream as most consumers do: the loop holds each tensor until the next has arrived."""
    count = 0
    for _ in stream:
        count += 1
    return count


def _engine(layers: int) -> Any:
    import deepspeed
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        vocab_size=8000,
        hidden_size=1024,
        intermediate_size=2400,
        num_hidden_layers=layers,
        num_attention_heads=16,
        max_position_embeddings=64,
    )
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    lora = LoraConfig(r=16, target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD([live for live in model.parameters() if live.requires_grad], lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": True},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": 3,
                "stage3_param_persistence_threshold": 0,
                "reduce_bucket_size": 1_000_000,
            },
        },
    )
    return engine


def _trl(model: Any) -> Iterable[tuple[str, Any]]:
    """TRL's released generator, driven without an inference server."""
    import torch
    from trl.generation.vllm_generation import DistributedBackend, VLLMGeneration

    generation: Any = object.__new__(VLLMGeneration)
    generation.model = model
    generation.accelerator = SimpleNamespace(device=torch.device("cpu"), is_main_process=True)
    generation._dist = object.__new__(DistributedBackend)
    generation._dist.zero_stage, generation._dist.fsdp_version = 3, None
    return generation._iter_named_params()


def _bare_all_gather(model: Any) -> Iterable[tuple[str, Any]]:
    """Nothing but an all-gather of every partition, one by one: no merge, no names."""
    import torch
    import torch.distributed as dist

    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # torch 2.13 renamed it
    for name, live in model.named_parameters():
        shard = live.ds_tensor.view(-1)
        whole = torch.empty(shard.numel() * dist.get_world_size(), dtype=shard.dtype)
        gather(whole, shard)
        yield name, whole


def _bare_gather(model: Any) -> Iterable[tuple[str, Any]]:
    """Nothing but a gather of every partition to rank 0, one by one."""
    import torch
    import torch.distributed as dist

    ranks = dist.get_world_size()
    for name, live in model.named_parameters():
        shard = live.ds_tensor.view(-1)
        if dist.get_rank():
            dist.gather(shard)
            continue
        whole = torch.empty(shard.numel() * ranks, dtype=shard.dtype)
        dist.gather(shard, list(whole.chunk(ranks)))
        yield name, whole


class _Wire:
    """Counts the bytes that this rank puts on the wire, where torch and DeepSpeed are called to send."""

    FUNCTIONS = ("broadcast", "isend", "all_gather_single", "all_gather_into_tensor", "gather")

    def __init__(self) -> None:
        self.sent = 0
        self._kept: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> Self:
        import torch.distributed as dist
        from deepspeed import comm

        for module in (dist, comm):
            for name in self.FUNCTIONS:
                if hasattr(module, name):
                    self._kept.append((module, name, getattr(module, name)))
                    setattr(module, name, self._counting(name, getattr(module, name)))
        return self

    def _counting(self, name: str, function: Any) -> Any:
        import torch.distributed as dist

        def counting(*args: Any, **kwargs: Any) -> Any:
            tensor = args[1] if name.startswith("all_gather") else args[0]
            mine = name != "broadcast" or kwargs.get("group_src") == dist.get_rank()
            leaves = name != "gather" or dist.get_rank() != 0
            self.sent += tensor.nbytes if mine and leaves else 0
            return function(*args, **kwargs)

        return counting

    def __exit__(self, *_: object) -> None:
        for module, name, function in self._kept:
            setattr(module, name, function)
