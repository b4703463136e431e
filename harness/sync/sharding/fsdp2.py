"""FSDP2 (``fully_shard``): a parameter is a DTensor, cut along its first dimension into chunks of rows.

A chunk of rows of a contiguous tensor is a contiguous run of the flattened one, so FSDP2 has the same shape
as ZeRO-3 here. With HSDP the replicas of a chunk are equal, and the gather stays inside one shard group. The
local tensors are read directly: a parameter that a forward has gathered is not resharded, nor the other way
round.
"""

from typing import Any

from torch.distributed.tensor import DTensor, Shard
from torch.nn import Parameter

from harness.sync.sharding.run import Run, even_bounds, whole_run


class Fsdp2:
    """Reads the local chunks of DTensor parameters."""

    name = "fsdp2"

    @staticmethod
    def is_distributed(parameter: object) -> bool:
        """Whether a parameter is laid out over ranks by DTensor."""
        return isinstance(parameter, DTensor)

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Full shape of a parameter."""
        return tuple(parameter.shape)

    def run(self, parameter: Any) -> Run:
        """The rank's chunk of rows."""
        if not isinstance(parameter, DTensor):
            return whole_run(parameter)
        local = parameter.to_local()
        cut = _cut_dimension(parameter)
        if cut is None:
            return whole_run(local)
        mesh = parameter.device_mesh
        ranks, rank = mesh.size(cut), mesh.get_local_rank(cut)
        rows = parameter.shape[0] if parameter.dim() else 1
        per_row = parameter.numel() // max(rows, 1)
        bounds = even_bounds(parameter.numel(), ranks, -(-rows // ranks) * per_row)
        group = None if ranks == 1 else mesh.get_group(cut)
        return Run(local.detach().reshape(-1), bounds, rank, group, local.device)

    def objection(self, parameter: Any) -> str | None:
        """Layouts whose parts are not runs of rows."""
        if parameter.is_meta:
            return "is on the meta device: load its weights before a sync"
        if not isinstance(parameter, DTensor):
            return None
        cuts = [place for place in parameter.placements if not place.is_replicate()]
        if len(cuts) > 1 or any(type(place) is not Shard or place.dim != 0 for place in cuts):
            return (
                f"is laid out as {parameter.placements}: only one cut of the first dimension (fully_shard, also "
                "with replicas) can be read"
            )
        return None


def _cut_dimension(parameter: DTensor) -> int | None:
    """The mesh dimension that the rows are cut over; None when every rank has them all."""
    cuts = [dim for dim, place in enumerate(parameter.placements) if place.is_shard()]
    return cuts[0] if cuts else None
