"""Merging in blocks of rows: a LoRA delta is never formed whole, and a shard is merged where it lies.

Row ``i`` of a merged weight depends on row ``i`` of the base weight and, of the adapter, on row ``i`` of one
factor and all of the other. So PEFT's own merge of a slice of a layer gives that slice of the merged layer,
bit for bit as long as a block has enough rows for the same matrix kernel to be chosen (``MIN_ROWS``; tests
prove it over shapes). That bounds what a merge needs beside the weight by a block, and lets each rank merge
the run of a weight that it
holds: the work is split over the ranks, and no rank ever holds an unmerged full tensor.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from harness.sync.adapters import adapters_to_merge, is_exactly
from harness.sync.delta import DeltaAdder, LowRank
from harness.sync.twin import twin

MIN_ROWS = 64
_VECTOR_LIKE = 16
"""With fewer columns a matrix kernel is not certain to be chosen, and a block would sum in another order."""
_BYTES_PER_ELEMENT = (
    10  # PEFT on CPU: the product and its scaled copy in float32, the result in half precision
)


def weight_by_rows(layer: Module) -> Parameter | None:
    """The base weight of a tuner layer that is plain LoRA on a matrix, whose rows merge alone; else None."""
    factors = _factors(layer)
    fields: Any = layer
    if factors is None or fields.merged_adapters:
        return None
    names = [name for name in adapters_to_merge(layer) if name in factors[0]]
    if any(name in fields.lora_variant or fields.lora_bias.get(name) for name in names):
        return None
    return fields._modules["base_layer"]._parameters["weight"]  # type: ignore[no-any-return]  # noqa: SLF001


def _factors(layer: Module) -> tuple[Mapping[str, Any], Mapping[str, Any], bool] | None:
    """Factor that is sliced, factor that is whole, whether slices lie across; None for other layers."""
    fields: Any = layer
    base = layer._modules.get("base_layer")  # noqa: SLF001
    if base is None or base._modules or base._parameters.get("weight") is None:  # noqa: SLF001
        return None
    if is_exactly(layer, "peft.tuners.lora.layer", "Linear"):
        if fields.fan_in_fan_out:
            return fields.lora_A, fields.lora_B, True
        return fields.lora_B, fields.lora_A, False
    if is_exactly(layer, "peft.tuners.lora.layer", "Embedding"):
        return fields.lora_embedding_A, fields.lora_embedding_B, True
    return None


class RowMerger:
    """Merges runs of one layer's weight.

    Args:
        layer: a live tuner layer with a ``weight_by_rows``; only read.
        factors: full tensor of each of its active adapters' factors, by ``id(parameter)``; only read.
        shape: full shape of the base weight.
    """

    def __init__(self, layer: Module, factors: Mapping[int, Tensor], shape: tuple[int, ...]) -> None:
        self.rows, self.columns = shape
        held = _factors(layer)
        assert held is not None
        sliced, whole, across = held
        fields: Any = layer
        self._deltas = [
            LowRank(_value(sliced[name], factors), _value(whole[name], factors), fields.scaling[name], across)
            for name in adapters_to_merge(layer)
            if name in sliced
        ]
        self._layer, self._factors_of = layer, factors
        self._adder: DeltaAdder | PeftOnRows = DeltaAdder(self._deltas, self.columns)

    @torch.no_grad()
    def merge_run(self, merged: Tensor, start: int, stop: int, scratch_bytes: int) -> None:
        """Merge a contiguous run of the flattened weight in place.

        Args:
            merged: flat base elements ``start`` to ``stop``; the merged ones afterwards.
            start: first flat element.
            stop: first flat element after the run.
            scratch_bytes: about what may be allocated at once; a block of ``MIN_ROWS`` rows is the least.
        """
        if not self._deltas or start >= stop:
            return
        with torch.autocast(merged.device.type, enabled=False):  # the consumer's is not the merge's
            self._merge_run(merged, start, stop, scratch_bytes)

    def _merge_run(self, merged: Tensor, start: int, stop: int, scratch_bytes: int) -> None:
        for first, last, low, high in self._blocks(start, stop, scratch_bytes):
            if (first * self.columns, last * self.columns) == (low, high):
                self._merge_block(merged[low - start : high - start], first, last)
                continue
            size = (last - first) * self.columns
            block = torch.zeros(size, dtype=merged.dtype, device=merged.device)
            taken = block[low - first * self.columns : high - first * self.columns]
            taken.copy_(merged[low - start : high - start])
            self._merge_block(block, first, last)
            merged[low - start : high - start] = taken

    def _blocks(self, start: int, stop: int, scratch_bytes: int) -> Iterator[tuple[int, int, int, int]]:
        """Blocks that cover a run: first row, row after the last, and the flat elements wanted of them.

        Whole rows of the run are merged in place; an end that is part of a row in a block about that row.
        """
        columns = self.columns
        if columns < _VECTOR_LIKE or self.rows <= MIN_ROWS:
            yield 0, self.rows, start, stop
            return
        whole = range(-(-start // columns), stop // columns)
        if len(whole) < MIN_ROWS:
            first = min(start // columns, self.rows - MIN_ROWS)
            yield first, max(first + MIN_ROWS, -(-stop // columns)), start, stop
            return
        if start % columns:
            yield *_about(whole.start - 1, self.rows), start, whole.start * columns
        height = max(MIN_ROWS, scratch_bytes // (_BYTES_PER_ELEMENT * columns) // MIN_ROWS * MIN_ROWS)
        edges = [*range(whole.start, whole.stop - MIN_ROWS + 1, height), whole.stop]
        for first, last in pairwise(edges):
            yield first, last, first * columns, last * columns
        if stop % columns:
            yield *_about(whole.stop, self.rows), whole.stop * columns, stop

    def _merge_block(self, flat: Tensor, first: int, last: int) -> None:
        block = flat.view(last - first, self.columns)
        kinds = {(delta.sliced.dtype, delta.across) for delta in self._deltas}
        kind = (type(self._layer), block.device.type, block.dtype, frozenset(kinds))
        if kind not in _agreed:
            trial, by_peft = block.clone(), block.clone()
            self._adder.add(trial, first)
            PeftOnRows(self._layer, self._factors_of).add(by_peft, first)
            _agreed[kind] = torch.equal(trial.view(torch.uint8), by_peft.view(torch.uint8))
        if not _agreed[kind] and isinstance(self._adder, DeltaAdder):
            self._adder = PeftOnRows(self._layer, self._factors_of)
        self._adder.add(block, first)


_agreed: dict[tuple[Any, ...], bool] = {}
"""Whether our arithmetic gave PEFT's bits on the first block of a kind; if not, PEFT's own merge runs
instead."""


class PeftOnRows:
    """PEFT's own merge of a slice of a layer: slower, and right whatever PEFT's version does.

    Args:
        layer: a live tuner layer with a ``weight_by_rows``; only read.
        factors: full tensor of each of its active adapters' factors, by ``id(parameter)``; only read.
    """

    def __init__(self, layer: Module, factors: Mapping[int, Tensor]) -> None:
        self._names = adapters_to_merge(layer)
        self._twin: Any = twin(layer, _Placeholders(factors))
        held = _factors(self._twin)
        assert held is not None
        sliced, _, self._across = held
        entries = [sliced[name] for name in self._names if name in sliced]
        parameters = [entry if isinstance(entry, Tensor) else entry.weight for entry in entries]
        self._sliced = [(parameter, parameter.data) for parameter in parameters]

    @torch.no_grad()
    def add(self, block: Tensor, first: int) -> None:
        """Merge into rows ``first`` on; ``block`` has shape ``(rows, columns)`` and is changed in place."""
        weight = self._twin.base_layer.weight
        weight.data = block
        for parameter, whole in self._sliced:
            parameter.data = whole.narrow(1 if self._across else 0, first, block.shape[0])
        self._twin.merged_adapters = []
        self._twin.merge(adapter_names=self._names)
        if weight.data.data_ptr() != block.data_ptr():
            block.copy_(weight.data)


def _value(entry: Any, factors: Mapping[int, Tensor]) -> Tensor:
    parameter = entry if isinstance(entry, Tensor) else entry._parameters["weight"]  # noqa: SLF001
    return factors[id(parameter)]


def _about(row: int, rows: int) -> tuple[int, int]:
    """A block of ``MIN_ROWS`` rows that holds a given one."""
    first = min(row, rows - MIN_ROWS)
    return first, first + MIN_ROWS


class _Placeholders(dict[int, Tensor]):
    """Tensors for a twin of which only some parameters are ever read."""

    def __missing__(self, key: int) -> Tensor:
        return torch.empty(0)


def cuts(shape: tuple[int, ...], itemsize: int, nbytes: int) -> list[int]:
    """Flat elements at which a tensor may be cut into pieces of so many bytes, between rows if it can."""
    if not shape or 0 in shape:
        return []
    columns = math.prod(shape[1:])
    height = max(1, nbytes // (columns * itemsize))
    if height > MIN_ROWS:
        height = height // MIN_ROWS * MIN_ROWS
    return [row * columns for row in range(height, shape[0], height)]
