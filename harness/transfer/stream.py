"""Tensors as one stream of bytes, cut into chunks of a fixed size: neither side buffers more than one chunk.

A chunk may end in the middle of a tensor, so the bound holds whatever the largest tensor is. Bytes are copied out of
a tensor before the source is asked for the next one: a source may reuse, or merge back, what it yielded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from harness.transfer.errors import TransferRefused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from harness.transfer.manifest import Manifest

CHUNK_BYTES = 64 << 20
"""Size of a chunk unless somebody asks for another: large enough that a gloo broadcast runs at full speed."""


def chunks(
    pairs: Iterable[tuple[str, torch.Tensor]], manifest: Manifest, chunk_bytes: int
) -> Iterator[torch.Tensor]:
    """Pack a pass into chunks.

    Args:
        pairs: what a source yields; checked against the manifest one by one.
        manifest: what it declared.
        chunk_bytes: size of every chunk but the last, which may be shorter.

    Yields:
        ``uint8`` tensors on CPU; one buffer, filled anew after each yield.

    Raises:
        TransferRefused: the pass disagrees with the manifest, naming the first tensor that does.
    """
    buffer = torch.empty(min(chunk_bytes, max(manifest.nbytes, 1)), dtype=torch.uint8)
    filled = 0
    for tensor in _checked(pairs, manifest):
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        start = 0
        while start < flat.numel():
            length = min(flat.numel() - start, buffer.numel() - filled)
            buffer[filled : filled + length].copy_(flat[start : start + length])
            start, filled = start + length, filled + length
            if filled == buffer.numel():
                yield buffer
                filled = 0
    if filled:
        yield buffer[:filled]


def _checked(pairs: Iterable[tuple[str, torch.Tensor]], manifest: Manifest) -> Iterator[torch.Tensor]:
    declared = iter(manifest.entries)
    count = 0
    for name, tensor in pairs:
        entry = next(declared, None)
        if entry is None:
            raise TransferRefused(
                f"metadata() declares {count} tensors and the pass yielded another one, {name}"
            )
        if not entry.matches(name, tensor):
            raise TransferRefused(
                f"tensor {count}: metadata() declares {entry}, the pass yielded {name}"
                f" ({str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)})"
            )
        count += 1
        yield tensor
    missing = next(declared, None)
    if missing is not None:
        raise TransferRefused(
            f"metadata() declares {len(manifest.entries)} tensors and the pass ended after {count}:"
            f" {missing.name} never came"
        )


class Staging:
    """Where the engine keeps a transfer until all of it has arrived: whole tensors in host memory.

    Args:
        manifest: what will arrive; memory for all of it is allocated here.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._tensors = [(e.name, torch.empty(e.shape, dtype=e.dtype)) for e in manifest.entries]
        self._flats = [tensor.reshape(-1).view(torch.uint8) for _, tensor in self._tensors]
        self._index = 0
        self._offset = 0
        self.received = 0
        self._expected = manifest.nbytes

    def place(self, chunk: torch.Tensor) -> None:
        """Copy the next chunk of the stream to where it belongs.

        Raises:
            TransferRefused: more bytes than were declared.
        """
        start = 0
        while start < chunk.numel():
            if self._index == len(self._flats):
                raise TransferRefused(
                    f"{self.received + chunk.numel() - start} bytes arrived, the manifest has {self._expected}"
                )
            flat = self._flats[self._index]
            length = min(chunk.numel() - start, flat.numel() - self._offset)
            flat[self._offset : self._offset + length].copy_(chunk[start : start + length])
            start, self._offset, self.received = start + length, self._offset + length, self.received + length
            if self._offset == flat.numel():
                self._index, self._offset = self._index + 1, 0

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """All of them, by name.

        Raises:
            TransferRefused: fewer bytes than were declared.
        """
        if self.received != self._expected:
            raise TransferRefused(f"{self.received} of {self._expected} bytes arrived")
        return self._tensors
