"""The trainer of an engine check: ranks in processes of their own, on the reference worker pool.

The ranks are driven from outside, so a check can kill or stop one of them in the middle of a transfer, which a rank
that runs the check itself could not survive.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any

from harness.conformance.engine.faulty import Fault, Misnamed, faulty_control, faulty_source
from harness.ipc import WorkerPool

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from harness.conformance.sync.scenarios import SyncScenario

HEAVY = (
    "torch",
    "transformers",
    "peft",
    "deepspeed",
    "harness.conformance.preload",
    "harness.sync",
    "harness.transfer",
)
"""Imported once, before the ranks are forked. With DeepSpeed's op loaded, no rank runs a compiler."""
START_S = 240.0
SOURCES = ("module-gather", "trl-packed", "misnamed")


class TrainerRank:
    """One rank. Its methods are called on every rank together.

    Args:
        index: rank.
        size: number of ranks.
        folder: where the ranks meet; fresh.
    """

    def __init__(self, index: int, size: int, folder: str) -> None:
        os.environ.update(
            RANK=str(index),
            LOCAL_RANK=str(index),
            WORLD_SIZE=str(size),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT="0",  # nobody connects to it: the group meets in a file
            GLOO_SOCKET_IFNAME="lo",
            DS_ACCELERATOR="cpu",
        )
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=index, world_size=size)
        self.rank, self.size = index, size
        self._trainer: Any = None
        self._scenario: Any = None
        self._kept: dict[str, list[torch.Tensor]] = {}
        self._sender: Any = None
        self._sends = ("", "", 0.0)

    def build(self, scenario: SyncScenario) -> None:
        """Make the scenario's trainer, in place of an earlier one."""
        from harness.conformance.sync.build import trainer

        self.leave()
        if self._trainer is not None:
            self._trainer.close()
        self._trainer, self._scenario, self._kept = trainer(scenario), scenario, {}

    def step(self) -> float:
        """One step of training on a fixed batch; the loss."""
        import torch

        from harness.conformance.sync.models import VOCABULARY

        engine = self._trainer.engine
        tokens = (torch.arange(24)[None] * 331 + 17 * self.rank) % VOCABULARY
        engine.train()
        loss = engine(input_ids=tokens, labels=tokens, use_cache=False).loss
        engine.backward(loss)
        engine.step()
        return float(loss)

    def keep(self, name: str) -> None:
        """Remember the trained weights of this rank's shard."""
        self._kept[name] = [tensor.clone() for tensor in self._trained()]

    def recall(self, name: str) -> None:
        """Put remembered weights back."""
        import torch

        with torch.no_grad():
            for tensor, kept in zip(self._trained(), self._kept[name], strict=True):
                tensor.copy_(kept)

    def _trained(self) -> list[torch.Tensor]:
        return [
            getattr(p, "ds_tensor", p.data).detach()
            for p in self._trainer.model.parameters()
            if p.requires_grad
        ]

    def sync(
        self, url: str, version: str, seconds: float = 30.0, source: str = "module-gather", fault: str = ""
    ) -> dict[str, Any] | None:
        """One transfer into the server at ``url``; what was sent, on rank 0.

        Args:
            url: the server.
            version: what its weights shall be called.
            seconds: limit of every wait.
            source: one of ``SOURCES``.
            fault: JSON of a ``Fault``, or nothing.
        """
        from harness.transfer import GroupPeers, HttpEngine, TrainerEngine

        planned = Fault.parse(fault)
        control: Any = HttpEngine(url, seconds)
        weights: Any = self._source(source)
        if planned is not None and planned.rank == self.rank:
            control, weights = faulty_control(control, planned), faulty_source(weights, planned)
        if (self._sender is None) or planned is not None or (url, source, seconds) != self._sends:
            self.leave()
            self._sender = TrainerEngine(
                weights, control, peers=GroupPeers(seconds), seconds=seconds, chunk_bytes=2 << 20
            )
            self._sends = (url, source, seconds)
        try:
            sent = self._sender.sync(version)
        finally:
            if planned is not None:
                self.leave()
        return None if sent is None else asdict(sent)

    def leave(self) -> None:
        """Leave the engine."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _source(self, name: str) -> Any:
        if name == "trl-packed":
            from harness.conformance.engine.packed import TrlPacked

            return TrlPacked(self._trainer.model, self._scenario, self.rank, self.size)
        from harness.sync import ModuleGatherSource

        source = ModuleGatherSource(self._trainer.model)
        return Misnamed(source) if name == "misnamed" else source

    def score(self, sequences: list[list[int]], merged: bool = True) -> list[list[float]]:
        """Log-probability of each token but the first, by transformers; the same on every rank.

        Args:
            sequences: token ids.
            merged: with the adapter, by ``merge_and_unload()``; else of the base model.
        """
        from harness.conformance.engine.scoring import base_of, merged_of, score

        model = merged_of(self._trainer.model, self._scenario) if merged else base_of(self._scenario)
        return score(model, sequences)


def trainers(size: int, folder: Path) -> WorkerPool:
    """Start the ranks of a trainer.

    Args:
        size: number of ranks.
        folder: fresh and empty, where they meet.
    """
    return WorkerPool(
        partial(TrainerRank, size=size, folder=str(folder)),
        size,
        name="trainer",
        timeout=120.0,
        start_timeout=START_S,
        start_method="forkserver",
        preload=HEAVY,
    )
