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

from harness.sync.exchange import gather_whole
from harness.sync.merging import unload
from harness.sync.naming import base_model, each_once, peft_model, survey
from harness.sync.plan import metadata
from harness.sync.refusal import examine
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
        self._model = model
        self._sharding = detect(model)
        examine(model, self._sharding)

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and full shape of every tensor of a pass, in its order; no collective."""
        return metadata(each_once(survey(self._model)), self._sharding)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Start a fresh pass; collective. The tensors belong to the consumer."""
        examine(self._model, self._sharding)
        yield from self._materialise()

    @torch.no_grad()
    def _materialise(self) -> list[tuple[str, Tensor]]:
        whole = {
            id(live): gather_whole(self._sharding.run(live)).view(self._sharding.shape(live))
            for live in parameters(self._model)
        }
        model = twin(self._model, whole)
        device = next(iter(whole.values())).device.type
        with warnings.catch_warnings(), torch.autocast(device, enabled=False):
            warnings.simplefilter(
                "ignore"
            )  # PEFT warns of adapters that are merged already; that is no fault here
            merged = _merge_whole(model)
        return [(found.name, found.parameter.data) for found in each_once(survey(merged))]


def _merge_whole(model: Module) -> Module:
    outer = peft_model(model)
    if outer is None:
        for layer in {one.tuners[0]: None for one in survey(model) if one.tuners}:
            unload(layer)
        return model
    inner = base_model(outer)
    if hasattr(inner, "config"):
        inner.config = copy.copy(
            inner.config
        )  # unloading may change it, and this one is still the live model's
    merged: Module = outer.merge_and_unload()  # type: ignore[operator]
    return merged
