"""DeepSpeed ZeRO-3: each rank holds an equal, contiguous run of the flattened parameter, padded at the end.

The shards (``ds_tensor``) are read directly, without ``GatheredParameters``. The engine's bookkeeping stays
as it is, so a gather works after an aborted forward (whose ``ds_active_sub_modules`` would fail an
assertion), inside another gather of the same parameters, and with parameters that are persistent or gathered
already: the shard is the authoritative copy in each of these states. What is changed inside an open
``GatheredParameters`` reaches the shard, and so a sync, when that context exits.
"""

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from harness.sync.sharding.run import Run, even_bounds, whole_run


class Zero3:
    """Reads the partitions that ``zero.Init`` or ``deepspeed.initialize`` made."""

    name = "zero3"

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Full shape of a parameter."""
        return tuple(getattr(parameter, "ds_shape", parameter.shape))

    def run(self, parameter: Any) -> Run:
        """The rank's partition without its padding."""
        if not hasattr(parameter, "ds_tensor"):  # added to the model after the engine took it over
            return whole_run(parameter)
        shard: Tensor = parameter.ds_tensor
        group = parameter.ds_process_group
        rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        bounds = even_bounds(parameter.ds_numel, ranks, shard.ds_numel)  # type: ignore[attr-defined]
        mine = shard.detach().view(-1)[: bounds[rank + 1] - bounds[rank]]
        return Run(mine, bounds, rank, None if ranks == 1 else group, parameter.device)

    def objection(self, parameter: Any) -> str | None:
        """Partitions that are not in memory as the values that they stand for."""
        shard = getattr(parameter, "ds_tensor", None)
        if shard is None:
            return "is on the meta device: load its weights before a sync" if parameter.is_meta else None
        if hasattr(shard, "ds_quant_scale"):
            return "is quantised by ZeRO (zero_quantized_nontrainable_weights): its partition holds codes"
        if shard.status.name != "AVAILABLE":
            return "is swapped out to NVMe: a sync reads partitions from memory; offload to cpu instead"
        return None
