"""What a transfer carries, declared before its bytes: the one list from which both sides cut the same stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from harness.transfer.errors import TransferRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Declared(Protocol):
    """One entry of a weight source's ``metadata()``."""

    @property
    def name(self) -> str:
        """The engine's name of the tensor."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Element type of what the source yields."""
        ...

    @property
    def shape(self) -> Sequence[int]:
        """Full shape."""
        ...


class Source(Protocol):
    """Where a trainer's weights come from: a list of what a pass yields, and a fresh pass per ``iter``.

    Every trainer rank iterates in lockstep. ``harness.sync`` has such sources, and vLLM's own ``WeightSource`` up to
    0.32 is one.
    """

    def metadata(self) -> Iterable[Declared]:
        """Name, dtype and full shape of every tensor, in pass order; nothing gathered."""
        ...

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Start a fresh pass; collective over the trainer's ranks."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of a transfer."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.name} ({str(self.dtype).removeprefix('torch.')} {list(self.shape)})"

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()

    def matches(self, name: str, tensor: torch.Tensor) -> bool:
        """Whether a yielded pair is what was declared."""
        return (name, tensor.dtype, tuple(tensor.shape)) == (self.name, self.dtype, self.shape)


@dataclass(frozen=True)
class Manifest:
    """Every tensor of a transfer, in stream order."""

    entries: tuple[Entry, ...]

    @classmethod
    def of(cls, metadata: Iterable[Declared]) -> Manifest:
        """Take a source's word.

        Raises:
            TransferRefused: a name is declared twice, or nothing is declared.
        """
        entries = tuple(Entry(str(each.name), each.dtype, tuple(each.shape)) for each in metadata)
        names = [entry.name for entry in entries]
        if not names:
            raise TransferRefused("the source's metadata() declares no tensor: there is nothing to transfer")
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise TransferRefused(f"the source's metadata() declares {twice} twice")
        return cls(entries)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole stream."""
        return sum(entry.nbytes for entry in self.entries)

    def to_json(self) -> list[list[Any]]:
        """For the engine's control plane."""
        return [
            [entry.name, str(entry.dtype).removeprefix("torch."), list(entry.shape)] for entry in self.entries
        ]

    @classmethod
    def from_json(cls, rows: Sequence[Sequence[Any]]) -> Manifest:
        """What ``to_json`` wrote.

        Raises:
            TransferRefused: a row is not a name, the name of a dtype, and a shape.
        """
        entries = []
        for row in rows:
            try:
                name, dtype_name, shape = row
                dtype = getattr(torch, dtype_name)
                entries.append(Entry(str(name), dtype, tuple(int(extent) for extent in shape)))
            except (TypeError, ValueError, AttributeError) as error:
                raise TransferRefused(
                    f"expected [name, dtype, shape] for each tensor of a transfer, got {row!r}: {error}"
                ) from error
            if not isinstance(dtype, torch.dtype):
                raise TransferRefused(f"{name}: {dtype_name!r} is not a dtype of torch")
        return cls(tuple(entries))
