"""The fix: gather, merge and hand over one unit at a time.

At any moment a rank holds its shard of the model and the unit that is being handed over. The model is only
read: abandoning a pass, or an exception in the consumer, leaves nothing to restore.
"""

from collections.abc import Iterator

from torch import Tensor
from torch.nn import Module

from harness.sync.merging import merge
from harness.sync.plan import Unit, metadata, units
from harness.sync.refusal import refuse_unsyncable
from harness.sync.sharding import detect
from harness.sync.source import ParamMeta


class ModuleGatherSource:
    """Weight source that materialises one tuner layer, or one parameter, at a time.

    Args:
        model: a plain module or a ``PeftModel``, whose parameters may be sharded (``engine.module``).
            Adapters may be added, switched or trained between passes.

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
        for unit in units(self.model):
            merged = self._materialise(unit)
            while merged:
                yield merged.pop(0)

    def _materialise(self, unit: Unit) -> list[tuple[str, Tensor]]:
        needed = unit.parameters()
        values = self._sharding.gather(needed)
        if unit.layer is None:
            return [(found.name, value) for found, value in zip(unit.bare, values, strict=True)]
        merged = merge(unit.layer, {id(live): value for live, value in zip(needed, values, strict=True)})
        return [(found.name, merged[path]) for path, found in zip(merged, unit.bare, strict=True)]
