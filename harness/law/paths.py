"""The ways to sync that the law is computed for, each by the code that would run on a cluster."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def paths(world_size: int) -> dict[str, Callable[[Any], Iterable[tuple[str, Any]]]]:
    """What to iterate for each path, by its name, as rank 0 of so many ranks; TRL's where it is installed."""
    from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource

    found: dict[str, Callable[[Any], Iterable[tuple[str, Any]]]] = {"reference": ModuleGatherSource}
    if world_size > 1:  # to the sender only; the sender itself holds what every rank does above
        found["reference, sends only"] = lambda model: SenderGatherSource(model, sender=1)
    found["full gather"] = FullGatherSource
    if find_spec("trl") is not None:
        found["trl"] = lambda model: _trl(model, world_size)
    return found


def _trl(model: Any, world_size: int) -> Iterable[tuple[str, Any]]:
    import torch

    from harness.conformance.sync.subject import SyncContext
    from harness.subjects.trl import iter_named_params

    return iter_named_params(model, SyncContext("zero3", torch.device("cpu"), 0, world_size))
