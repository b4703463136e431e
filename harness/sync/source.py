"""The contract between a trainer that owns sharded weights and whoever feeds an engine with them.

It has the shape of vLLM's trainer-side ``WeightSource`` (``metadata`` and a fresh pass per ``iter``), so that
a source written here can be handed to it, and is declared without importing vLLM.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class ParamMeta:
    """What an engine must know of a tensor before its bytes arrive."""

    name: str
    """Name in the unadapted, unsharded model, which is the engine's name."""
    dtype: torch.dtype
    """Element type of the yielded tensor."""
    shape: tuple[int, ...]
    """Full shape, whatever part of it this rank holds."""

    @property
    def nbytes(self) -> int:
        """Bytes of the full tensor."""
        size = self.dtype.itemsize
        for extent in self.shape:
            size *= extent
        return size


@runtime_checkable
class WeightSource(Protocol):
    """Yields every base parameter of a model, merged and whole, once per pass.

    The passes run in lockstep: every rank calls ``iter`` and exhausts it, or every rank leaves at the same
    yield. A yielded tensor belongs to the consumer; nothing writes to its bytes again. ``metadata`` agrees
    with the pass element for element.
    """

    def metadata(self) -> list[ParamMeta]:
        """Name, dtype and full shape of every tensor, in pass order; no collective, nothing gathered."""
        ...

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Start a fresh pass; collective."""
        ...
