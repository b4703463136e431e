"""Where a parameter's bytes lie on this rank, under each engine: read and written without a collective.

Independent of ``harness.sync``, which is itself under test: the checks look at a model through this file only.
"""

from __future__ import annotations

from typing import Any

import torch


def places(parameter: Any) -> list[torch.Tensor]:
    """The tensors that hold this rank's bytes of a parameter, by reference; the authoritative one first.

    ZeRO-3 keeps a persistent parameter twice: its shard, and the whole that forwards read.
    """
    shard = getattr(parameter, "ds_tensor", None)
    if shard is not None:
        return [shard, parameter.data] if _persists(parameter) else [shard]
    if hasattr(parameter, "device_mesh"):
        return [parameter.to_local().detach()]
    return [parameter.data]


def is_left_gathered(parameter: Any) -> bool:
    """Whether ZeRO-3 holds a parameter whole that it shards between forwards."""
    status = getattr(parameter, "ds_status", None)
    return status is not None and status.name != "NOT_AVAILABLE" and not parameter.ds_persist


def write(parameter: Any, whole: torch.Tensor) -> None:
    """Give a parameter a new value in place, as an optimizer step would, on this rank's part of it.

    Args:
        parameter: live, sharded or not.
        whole: its new value in full shape; the same on every rank.
    """
    with torch.no_grad():
        for place in places(parameter):
            part = _part(parameter, place, whole.to(place))
            place.view(-1)[: part.numel()].copy_(part)


def full_shape(parameter: Any) -> tuple[int, ...]:
    """Shape of the whole parameter, whatever this rank holds."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _part(parameter: Any, place: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """What of a whole value belongs in one place, flat."""
    if place is getattr(parameter, "ds_tensor", None):
        rank = torch.distributed.get_rank(parameter.ds_process_group)
        length = place.ds_numel
        return whole.flatten()[rank * length : (rank + 1) * length]
    if hasattr(parameter, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        mesh, cuts = parameter.device_mesh, parameter.placements
        return distribute_tensor(whole, mesh, cuts, src_data_rank=None).to_local().flatten()
    return whole.flatten()


def _persists(parameter: Any) -> bool:
    return bool(getattr(parameter, "ds_persist", False)) and parameter.ds_status.name == "AVAILABLE"
