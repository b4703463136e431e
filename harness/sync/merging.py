"""The value an engine needs for an adapted layer: PEFT's own merge, run on a twin.

PEFT decides how each of its methods merges; a twin makes that exact, since nothing is ever unmerged again.
"""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import Module

from harness.sync.naming import occurrences
from harness.sync.twin import twin


@torch.no_grad()
def merge(layer: Module, tensors: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Merge the active adapters of a tuner layer into the layer it wraps.

    Args:
        layer: the live tuner layer (outermost, where tuner layers nest); only read.
        tensors: full tensor of every parameter below it, by ``id(parameter)``; taken over and changed.

    Returns:
        Merged tensors by their path below the layer, in the base layer's order.
    """
    copy = twin(layer, tensors)
    device = next(iter(tensors.values())).device.type
    with warnings.catch_warnings(), torch.autocast(device, enabled=False):
        warnings.simplefilter(
            "ignore"
        )  # PEFT warns of adapters that are merged already; that is no fault here
        base = unload(copy)
    return {found.name: found.parameter.data for found in occurrences(base)}


def unload(layer: Module) -> Module:
    """Merge a tuner layer in place by PEFT's own code and return the base layer. For twins only."""
    special = getattr(layer, "unload_and_optionally_merge_module", None)
    if special is not None:
        unloaded: Module = special(merge=True, safe_merge=False, adapter_names=None)
        return unloaded
    layer.merge()  # type: ignore[operator]
    base: Module = layer.get_base_layer()  # type: ignore[operator]
    return base
