"""What crosses the pipe: a fixed header, then the segments that it announces. Data, never a live object.

::

    magic "hI" | kind | by dill | further segments (u32) | call id (u64) | length of segment 0 (u64)
    lengths of the further segments (u64 each)
    segment 0: the pickle stream
    further segments: its out-of-band buffers (PEP 574)

The kind and the id stand outside the pickle, so that a payload which cannot be rebuilt still says to which call it
belongs. Everything is encoded before the first byte is sent.
"""

from __future__ import annotations

import enum
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.ipc.pickling import Buffer, Parcel, decode, encode

if TYPE_CHECKING:
    import socket

_HEADER = struct.Struct("<2sBBIQQ")
_MAGIC = b"hI"
_JOIN_BYTES = 64 * 1024
"""Up to this size header and payload are joined and sent by one system call."""
_IOV = 512
"""Buffers handed to one ``sendmsg``; the system's limit is 1024."""


class Kind(enum.IntEnum):
    """What a message is."""

    BUILD = 1
    CALL = 2
    POST = 3
    CLOSE = 4
    RESULT = 5
    FAILURE = 6
    POSTED = 7
    """Posts before this call failed; the call was not run."""
    GIVEN_UP = 8
    """Nobody has read, nor will read, the reply to this call: what it said of failed posts is still to be said."""


NOTHING = encode(None)
"""The payload of messages that say all by their kind."""
_KINDS = {int(kind): kind for kind in Kind}


class _Stage(enum.Enum):
    HEAD = 1
    TABLE = 2
    BODY = 3


class GarbledPipe(Exception):
    """Bytes arrived that are no envelope: somebody else wrote to this pipe."""


class Message(NamedTuple):
    """One message that has arrived whole, not decoded yet."""

    kind: Kind
    call_id: int
    by_dill: bool
    segments: list[bytearray]

    def decode(self) -> Any:
        """Rebuild the payload; raises whatever the payload's own code raises."""
        return decode(self.segments[0], self.segments[1:], by_dill=self.by_dill)


class Outgoing:
    """One message on its way out; remembers how much of it has been sent."""

    __slots__ = ("_pieces", "begun", "call_id")

    def __init__(self, kind: Kind, call_id: int, parcel: Parcel) -> None:
        chunks, buffers = parcel.chunks, parcel.buffers
        length = sum(map(len, chunks))
        head = _HEADER.pack(_MAGIC, kind, parcel.by_dill, len(buffers), call_id, length)
        if buffers:
            head += struct.pack(f"<{len(buffers)}Q", *(buffer.nbytes for buffer in buffers))
        self._pieces: list[Buffer]
        if length <= _JOIN_BYTES:
            self._pieces = [b"".join((head, *chunks)), *buffers]
        else:
            self._pieces = [head, *chunks, *buffers]
        self.call_id = call_id
        self.begun = False

    def send(self, pipe: socket.socket) -> bool:
        """Send what the pipe takes now. True when all of it has been sent.

        Raises:
            OSError: the other end is gone.
        """
        pieces = self._pieces
        while pieces:
            try:
                sent = pipe.send(pieces[0]) if len(pieces) == 1 else pipe.sendmsg(pieces[:_IOV])
            except BlockingIOError:
                return False
            self.begun = True
            if len(pieces) == 1 and sent == len(pieces[0]):
                pieces.clear()
                break
            self._advance(sent)
        return True

    def own(self) -> None:
        """Copy what is still to be sent, so that the caller may change or free its buffers."""
        self._pieces = [piece if type(piece) is bytes else bytes(piece) for piece in self._pieces]

    def _advance(self, sent: int) -> None:
        pieces = self._pieces
        done = 0
        while done < len(pieces) and sent >= len(pieces[done]):
            sent -= len(pieces[done])
            done += 1
        del pieces[:done]
        if sent:
            pieces[0] = memoryview(pieces[0])[sent:]


class Incoming:
    """Puts messages together from what a pipe delivers; keeps a partial one between calls.

    Reads go into a small buffer first, which nearly always holds one whole message and nothing else; what it does not
    hold of a larger message is read straight into the memory where the message is kept.
    """

    def __init__(self) -> None:
        self._buffer = bytearray(_JOIN_BYTES)
        self._window = memoryview(self._buffer)
        self._over = self._window[:0]
        """What has been read beyond the message that was handed out last."""
        self._restart()

    def _restart(self) -> None:
        self._stage = _Stage.HEAD
        self._head: tuple[Kind, int, bool] = (Kind.CALL, 0, False)
        self._arrived: list[bytearray] = []
        self._ahead: list[int] = []
        self._first = self._total = 0
        self._expect(_HEADER.size)

    def _expect(self, length: int) -> None:
        try:
            self._room = bytearray(length)
        except (MemoryError, OverflowError):
            raise GarbledPipe(f"{length} bytes were announced, for which there is no room".encode()) from None
        self._view = memoryview(self._room)
        self._filled = 0

    @property
    def buffered(self) -> bool:
        """Whether bytes of a further message are here already: the pipe need not be readable for it."""
        return bool(self._over)

    @property
    def progress(self) -> tuple[int, int] | None:
        """(bytes here, bytes announced) of a message that is not whole yet, or None between two messages."""
        if self._stage is _Stage.HEAD:
            return (self._filled, _HEADER.size) if self._filled else None
        return sum(map(len, self._arrived)) + self._filled, self._total

    def receive(self, pipe: socket.socket) -> Message | None:
        """Read until one message is whole, or until the pipe has no more for now (None).

        Raises:
            EOFError: the other end is closed.
            GarbledPipe: what arrived is not an envelope.
        """
        if self._stage is _Stage.HEAD and not self._filled and not self._over:
            count = self._read(pipe, self._window)
            if count is None:
                return None
            message = self._whole(count)
            if message is not None:
                return message
            self._over = self._window[:count]
        return self._assemble(pipe)

    def _whole(self, count: int) -> Message | None:
        """The buffer's first ``count`` bytes as a message, if they are exactly one."""
        if count < _HEADER.size:
            return None
        magic, kind, by_dill, further, call_id, length = _HEADER.unpack_from(self._buffer)
        if further or length != count - _HEADER.size or magic != _MAGIC or kind not in _KINDS:
            return None
        return Message(_KINDS[kind], call_id, bool(by_dill), [self._buffer[_HEADER.size : count]])

    def _assemble(self, pipe: socket.socket) -> Message | None:
        while True:
            while (room := len(self._view) - self._filled) > 0:
                if self._over:
                    count = min(room, len(self._over))
                    self._view[self._filled : self._filled + count] = self._over[:count]
                    self._over = self._over[count:]
                else:
                    read = self._read(pipe, self._view[self._filled :])
                    if read is None:
                        return None
                    count = read
                self._filled += count
            message = self._filled_up()
            if message is not None:
                return message

    @staticmethod
    def _read(pipe: socket.socket, view: memoryview) -> int | None:
        try:
            count = pipe.recv_into(view)
        except BlockingIOError:
            return None
        except ConnectionResetError:
            count = 0
        if count == 0:
            raise EOFError
        return count

    def _filled_up(self) -> Message | None:
        """The room of this stage is full: make room for the next, or hand out the whole message."""
        if self._stage is _Stage.HEAD:
            self._read_head()
            return None
        if self._stage is _Stage.TABLE:
            self._ahead = list(struct.unpack(f"<{len(self._room) // 8}Q", self._room))
            self._total += sum(self._ahead)
            self._stage = _Stage.BODY
            self._expect(self._first)
            return None
        self._arrived.append(self._room)
        if self._ahead:
            self._expect(self._ahead.pop(0))
            return None
        message = Message(*self._head, self._arrived)
        self._restart()
        return message

    def _read_head(self) -> None:
        magic, kind, by_dill, further, call_id, length = _HEADER.unpack(self._room)
        if magic != _MAGIC or kind not in _KINDS or by_dill > 1:
            raise GarbledPipe(bytes(self._room))
        self._head = (_KINDS[kind], call_id, bool(by_dill))
        self._first = self._total = length
        self._stage = _Stage.TABLE if further else _Stage.BODY
        self._expect(8 * further if further else length)
