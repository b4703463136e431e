"""Pack a stream of tensors into buckets of bytes, as transports like them: few large messages.

Buckets are planned from the metadata, by the true size of each tensor whatever part of it this rank holds, so
a sharded parameter never counts as empty. Each bucket owns its bytes; its order and layout are known before
the stream begins.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.errors import UsageError
from harness.sync.errors import SyncFailed
from harness.sync.source import ParamMeta, WeightSource

_ALIGNMENT = 16  # bytes: what any dtype may be viewed at


@dataclass(frozen=True, slots=True)
class Bucket:
    """Consecutive tensors of a pass in one flat buffer."""

    entries: tuple[ParamMeta, ...]
    """The tensors, in the order of the pass."""
    offsets: tuple[int, ...]
    """Where each begins, in bytes."""
    buffer: Tensor
    """Flat ``uint8``; belongs to the consumer."""

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Name and value of each tensor, as views of the buffer."""
        return [
            (entry.name, self.buffer[start : start + entry.nbytes].view(entry.dtype).view(entry.shape))
            for entry, start in zip(self.entries, self.offsets, strict=True)
        ]


def plan_buckets(metadata: Sequence[ParamMeta], nbytes: int) -> list[list[ParamMeta]]:
    """Group tensors, in order, into buckets of at most ``nbytes``; a larger tensor has a bucket to itself.

    Raises:
        UsageError: a bucket would be smaller than one element.
    """
    element = max((meta.dtype.itemsize for meta in metadata), default=1)
    if nbytes < element:
        raise UsageError(
            f"a bucket of {nbytes} bytes is smaller than one element: {element} bytes are the least"
        )
    groups: list[list[ParamMeta]] = []
    filled = 0
    for meta in metadata:
        if not groups or filled + meta.nbytes > nbytes:
            groups.append([])
            filled = 0
        groups[-1].append(meta)
        filled += _aligned(meta.nbytes)
    return groups


def bucketed(source: WeightSource, nbytes: int) -> Iterator[Bucket]:
    """One pass over a source, packed into buckets; collective as the source is.

    Args:
        source: what to pack; its stream must agree with its metadata.
        nbytes: most bytes of a bucket; a tensor larger than that travels whole in a bucket of its own.

    Yields:
        Buckets in the order of the pass; none on a rank that is given no tensors.

    Raises:
        UsageError: ``nbytes`` is less than one element; before any collective.
        SyncFailed: the stream gave another tensor than its metadata announced.
    """
    groups = plan_buckets(source.metadata(), nbytes)
    return _fill(iter(source), groups)


def _fill(stream: Iterator[tuple[str, Tensor]], groups: Sequence[Sequence[ParamMeta]]) -> Iterator[Bucket]:
    for place, group in enumerate(groups):
        offsets = _offsets(group)
        buffer: Tensor | None = None
        for entry, start in zip(group, offsets, strict=True):
            found = next(stream, None)
            if found is None and buffer is None and place == 0:
                return
            tensor = _expected(found, entry)
            if buffer is None:
                size = offsets[-1] + group[-1].nbytes
                buffer = torch.empty(size, dtype=torch.uint8, device=tensor.device)
            buffer[start : start + entry.nbytes].view(entry.dtype).view(entry.shape).copy_(tensor)
            del tensor, found
        assert buffer is not None
        yield Bucket(tuple(group), offsets, buffer)
    extra = next(stream, None)
    if extra is not None:
        raise SyncFailed(f"the stream goes on with {extra[0]} after the last tensor of its metadata")


def _expected(found: tuple[str, Tensor] | None, entry: ParamMeta) -> Tensor:
    if found is None:
        raise SyncFailed(f"the stream ended where its metadata announces {entry.name}")
    name, tensor = found
    if (name, tensor.dtype, tuple(tensor.shape)) != (entry.name, entry.dtype, entry.shape):
        raise SyncFailed(
            f"the stream gave {name} {tuple(tensor.shape)} {tensor.dtype} where its metadata announces "
            f"{entry.name} {entry.shape} {entry.dtype}"
        )
    return tensor


def _offsets(group: Sequence[ParamMeta]) -> tuple[int, ...]:
    offsets = [0]
    for meta in group[:-1]:
        offsets.append(offsets[-1] + _aligned(meta.nbytes))
    return tuple(offsets)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
