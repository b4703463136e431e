"""One row per model, world size and path: what a GPU holds, and which card that fits."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.law.rank import DTYPES, FakeRank

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from harness.law.model import Model

GB = 1_000_000_000  # bytes: as on the box of a card
DEADLINE = 3600.0  # seconds for one model at every world size; 405B takes minutes on two cores
_PRELOAD = ("torch", "torch.distributed", "transformers", "peft", "deepspeed", "trl")


@dataclass(frozen=True)
class Request:
    """What to compute."""

    models: Sequence[Model]
    worlds: Sequence[int] = (2, 8, 64, 256)
    """World sizes; the model is sharded over all ranks."""
    dtype: str = "bf16"
    """Of base and adapter."""
    adapter_rank: int = 16
    """Of the LoRA on all linear layers."""
    cards: Sequence[int] = (80, 141)
    """Memory of the cards to compare with, in GB of 1e9 bytes."""

    def __post_init__(self) -> None:
        """Complain at the door."""
        if self.dtype not in DTYPES:
            raise UsageError(f"unknown dtype {self.dtype!r}: expected one of {', '.join(DTYPES)}")
        if self.adapter_rank < 1:
            raise UsageError(f"an adapter of rank {self.adapter_rank}: a rank is at least 1")
        if not self.worlds or min(self.worlds) < 1:
            raise UsageError(f"world sizes {list(self.worlds)}: expected at least one, and each at least 1")
        if not self.cards or min(self.cards) < 1:
            raise UsageError(
                f"cards of {list(self.cards)} GB: expected at least one, and each of at least 1 GB"
            )


@dataclass(frozen=True)
class Row:
    """One path on one GPU. Sizes in bytes."""

    model: str
    world_size: int
    path: str
    model_bytes: int
    largest_bytes: int
    shard_bytes: int
    """Resident: this rank's part of base and adapter, in the model's dtype."""
    peak_bytes: int
    """Above the shard, at the highest point of a pass whose consumer keeps one tensor."""

    @property
    def together(self) -> int:
        """Shard and peak."""
        return self.shard_bytes + self.peak_bytes

    def fits(self, card: int) -> bool:
        """Whether shard and peak fit a card of so many GB, with nothing else on it."""
        return self.together <= card * GB

    def as_data(self, cards: Sequence[int]) -> dict[str, Any]:
        """The entry of a record."""
        return {**asdict(self), "fits": {str(card): self.fits(card) for card in cards}}


def rows(request: Request, on_model: Callable[[Model], None] = lambda _: None) -> list[Row]:
    """Compute the law: one process per world size, which stands for rank 0.

    Args:
        request: what to compute.
        on_model: told of each model as it begins.

    Raises:
        UsageError: a configuration makes no model that can be synced.
        HarnessError: a process ended, or was silent for an hour.
    """
    from harness.conformance.deepspeed_op import ensure_built
    from harness.ipc import WorkerFailed, WorkerPool

    worlds = list(dict.fromkeys(request.worlds))
    os.environ["DS_ACCELERATOR"] = "cpu"  # fake tensors are on CPU, whatever this machine has
    ensure_built()
    found: list[Row] = []
    with WorkerPool(
        lambda index: FakeRank(worlds[index]),
        len(worlds),
        start_method="forkserver",
        preload=_PRELOAD,
        timeout=DEADLINE,
        start_timeout=300.0,
        name="law",
    ) as pool:
        for model in request.models:
            on_model(model)
            try:
                measured = pool.call("measure", model.config, request.dtype, request.adapter_rank)
            except WorkerFailed as failure:
                raise _told(model, failure) from failure
            for world, entries in zip(worlds, measured, strict=True):
                found += [Row(model.name, world, **entry) for entry in entries]
    return found


def _told(model: Model, failure: Any) -> Exception:
    """The sentence of a usage error in a worker; other failures are ours, and stay as they are."""
    root = failure.root
    if root.type_name.rpartition(".")[2] in {"UsageError", "SyncRefused"}:
        return UsageError(f"{model.source}: {root.message}")
    return failure  # type: ignore[no-any-return]
