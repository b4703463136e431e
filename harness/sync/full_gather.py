"""The reference full gather: what others are measured against.

It gathers every parameter into a twin of the whole model and lets PEFT merge and unload that twin, the
plainest way there is to the right answer, at the price of the whole model on every rank.
"""

import copy
import warnings
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import Module

from harness.sync.merging import unload
from harness.sync.naming import bare_parameters, base_model, peft_model
from harness.sync.plan import metadata, units
from harness.sync.refusal import refuse_unsyncable
from harness.sync.sharding import detect
from harness.sync.source import ParamMeta
from harness.sync.tree import parameters
from harness.sync.twin import twin


class FullGatherSource:
    """Weight source that materialises the model, merges it, then hands it over.

    Args:
        model: a plain module or a ``PeftModel``, whose parameters may be sharded (``engine.module``).

    Raises:
        SyncRefused: on construction and at the start of each pass, for a model that cannot be synced right;
            before any collective.
    """

    def __init__(self, model: Module) -> None:
        self.model = model
        refuse_unsyncable(model)
        self._sharding = detect(model)

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and full shape of every tensor of a pass, in its order; no collective."""
        return metadata(units(self.model), self._sharding)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Start a fresh pass; collective. The tensors belong to the consumer."""
        refuse_unsyncable(self.model)
        yield from self._materialise()

    @torch.no_grad()
    def _materialise(self) -> list[tuple[str, Tensor]]:
        live = parameters(self.model)
        whole = self._sharding.gather(live)
        model = twin(self.model, {id(parameter): value for parameter, value in zip(live, whole, strict=True)})
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # PEFT warns of adapters that are merged already; that is no fault here
            merged = _merge_whole(model)
        return [(found.name, found.parameter.data) for found in bare_parameters(merged)]


def _merge_whole(model: Module) -> Module:
    outer = peft_model(model)
    if outer is None:
        for layer in [unit.layer for unit in units(model) if unit.layer is not None]:
            unload(layer)
        return model
    inner = base_model(outer)
    if hasattr(inner, "config"):
        inner.config = copy.copy(
            inner.config
        )  # unloading may change it, and this one is still the live model's
    merged: Module = outer.merge_and_unload()  # type: ignore[operator]
    return merged
