"""DeepSpeed ZeRO-3: each rank holds an equal, contiguous run of the flattened parameter, padded at the end.

The shards (``ds_tensor``) are read and exchanged directly, without ``GatheredParameters``. The engine's
bookkeeping stays as it is, so a gather works after an aborted forward (whose ``ds_active_sub_modules`` would
fail an assertion), inside another gather of the same parameters, and with parameters that are persistent or
gathered already: the shard is the authoritative copy in each of these states.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter


class Zero3:
    """Gathers each parameter over the process group that it is partitioned in."""

    name = "zero3"

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Full shape of a parameter; no collective."""
        return tuple(getattr(parameter, "ds_shape", parameter.shape))

    @torch.no_grad()
    def gather(self, parameters: Sequence[Parameter]) -> list[Tensor]:
        """Full values of the parameters, one all-gather each; collective over each one's group."""
        return [self._gather_one(parameter) for parameter in parameters]

    def _gather_one(self, parameter: Any) -> Tensor:
        whole: Tensor
        if not hasattr(parameter, "ds_tensor"):  # added to the model after the engine took it over
            whole = parameter.detach().clone()
            return whole
        shard: Tensor = parameter.ds_tensor.detach().to(parameter.device).view(-1)
        ranks = dist.get_world_size(parameter.ds_process_group)
        whole = torch.empty(shard.numel() * ranks, dtype=shard.dtype, device=shard.device)
        if ranks == 1:
            whole.copy_(shard)
        else:
            dist.all_gather_into_tensor(whole, shard, group=parameter.ds_process_group)
        return whole[: parameter.ds_numel].view(parameter.ds_shape)
