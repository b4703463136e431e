"""Consumers of a stream of weights, as inference engines have them: what each keeps, and when it reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

DEFAULT_CHUNK = 1 << 30  # bytes: the buffer that vLLM's packed broadcast fills before it copies, by default


@dataclass
class PackingConsumer:
    """Keeps views of what it is given and copies them when a chunk is full or the stream ends.

    That is what vLLM's packed weight transfer does with a weight iterator: a byte view of each tensor is kept, and
    the chunk is concatenated once its size passes the buffer's, or after the iterator has ended.

    Args:
        chunk_bytes: size at which a chunk is copied out.

    Attributes:
        arrived: what the engine gets, by name: bytes as they were when the chunk was copied, shape and dtype kept.
        chunks: how many chunks were copied.
    """

    chunk_bytes: int = DEFAULT_CHUNK
    arrived: dict[str, torch.Tensor] = field(default_factory=dict)
    chunks: int = 0
    _views: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    _held: int = 0

    def consume(self, stream: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Read the whole stream."""
        for name, tensor in stream:
            self._views.append((name, tensor.detach()))
            self._held += tensor.nbytes
            if self._held > self.chunk_bytes:
                self._copy()
        self._copy()

    def _copy(self) -> None:
        if self._views:
            self.arrived.update({name: view.clone() for name, view in self._views})
            self.chunks += 1
        self._views, self._held = [], 0


def read_at_once(stream: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Copy every tensor the moment it is yielded: the most careful consumer there is."""
    return {name: tensor.detach().clone() for name, tensor in stream}


def read_at_end(stream: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Keep every tensor and read only when the stream has ended."""
    kept = list(stream)
    return {name: tensor.detach().clone() for name, tensor in kept}


def discard(stream: Iterable[tuple[str, torch.Tensor]]) -> tuple[int, int]:
    """Read the stream and keep nothing; number of tensors and of bytes that passed."""
    count = total = 0
    for _, tensor in stream:
        count += 1
        total += tensor.nbytes
        del tensor  # or it would still be live while the next one is made
    return count, total
