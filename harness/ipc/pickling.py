"""Objects to bytes and back: C pickle where it can, dill where it must, and no copy of large data.

C pickle is several times faster than dill's Python one, so it is tried first; what it cannot write by reference
(lambdas, closures, local classes, anything defined in ``__main__``, which the other process may not have) goes to dill.
Buffers that support pickle protocol 5's out-of-band data (PEP 574) and large ``bytes`` are kept as they are and
handed to the socket, not copied into one string.
"""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

Buffer: TypeAlias = bytes | bytearray | memoryview

PROTOCOL = 5
OUT_OF_BAND_BYTES = 64 * 1024
"""Smaller buffers travel inside the pickle: a table entry and a read of their own would cost more than the copy."""


class Parcel(NamedTuple):
    """One encoded object."""

    chunks: list[bytes]
    """The pickle stream, in the pieces in which the pickler wrote it."""
    buffers: list[memoryview]
    """Out-of-band buffers: views of the caller's own memory."""
    by_dill: bool = False
    """Which of the two picklers wrote it: dill's stream needs dill's reader."""


class _Keeper:
    """What a pickler writes to: keeps every piece as it is, so that large data is never copied."""

    __slots__ = ("buffers", "chunks")

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.buffers: list[memoryview] = []

    def write(self, data: Buffer) -> None:
        # Anything but exact bytes may be a view of memory that is valid only during this call.
        self.chunks.append(data if type(data) is bytes else bytes(data))

    def keep_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        """The pickler asks where a buffer shall travel: true for within the stream."""
        try:
            view = buffer.raw()
        except BufferError:  # not contiguous: only a copy can carry it
            return True
        if view.nbytes < OUT_OF_BAND_BYTES:
            return True
        self.buffers.append(view)
        return False


class _NeedsDill(Exception):
    """The object refers to something that only dill can carry."""


class _FastPickler(pickle.Pickler):
    """C pickle that refuses references to ``__main__``: the other process has another main module."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, (type, FunctionType)) and obj.__module__ in {"__main__", "__mp_main__"}:
            raise _NeedsDill
        return NotImplemented


def encode(value: Any) -> Parcel:
    """Encode any object that C pickle or dill can encode.

    Raises:
        BaseException: whatever the object's own ``__reduce__`` raises, or the pickler's error, when neither can.
    """
    keeper = _Keeper()
    try:
        _FastPickler(keeper, PROTOCOL, buffer_callback=keeper.keep_in_band).dump(value)
    except Exception:  # noqa: BLE001 - C pickle says no in many ways; dill has the last word, and its error is raised
        return _encode_with_dill(value)
    return Parcel(keeper.chunks, keeper.buffers)


def decode(stream: Buffer, buffers: Sequence[Buffer] = (), *, by_dill: bool = False) -> Any:
    """Rebuild an object; its class's code runs here and may raise anything."""
    if by_dill:
        import dill

        return dill.loads(stream)
    return pickle.loads(stream, buffers=buffers)


def _encode_with_dill(value: Any) -> Parcel:
    import dill

    stream = io.BytesIO()
    # recurse: carry the globals that a function uses, not a reference to the whole ``__main__`` of this process, which
    # dill would look up in the other process and not find there.
    dill.Pickler(stream, PROTOCOL, recurse=True).dump(value)
    return Parcel([stream.getvalue()], [], by_dill=True)
