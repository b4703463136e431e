"""``-s`` for ranks: what they write appears at once, each line with its rank in front.

Every rank writes to a named pipe; a thread of the process that started the ranks reads them all. A rank that
is killed has its last words read from the pipe, which the kernel keeps.
"""

import os
import selectors
import sys
import threading

from harness.ranks.settings import RankSettings

_CHUNK = 65536


class Terminal:
    """The reading end of all ranks' output. Made before the ranks start, closed after they have ended."""

    def __init__(self, settings: RankSettings, ranks: list[int]) -> None:
        self._selector = selectors.DefaultSelector()
        self._rest: dict[int, bytes] = {}
        self._descriptors: list[int] = []
        for rank in ranks:
            path = settings.output_file(rank)
            os.mkfifo(path, 0o600)
            # Read and write: the pipe then never reports an end while ranks come and go.
            descriptor = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            self._descriptors.append(descriptor)
            self._selector.register(descriptor, selectors.EVENT_READ, rank)
            self._rest[rank] = b""
        self._waking, self._wake = os.pipe()
        self._selector.register(self._waking, selectors.EVENT_READ, None)
        self._thread = threading.Thread(target=self._read, name="harness-ranks-terminal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what is left, then let go of the pipes."""
        os.write(self._wake, b".")
        self._thread.join()
        self._selector.close()
        for descriptor in (*self._descriptors, self._waking, self._wake):
            os.close(descriptor)

    def _read(self) -> None:
        closing = False
        while True:
            ready = self._selector.select(0 if closing else None)
            written = [key for key, _ in ready if key.data is not None]
            for key in written:
                self._show(key.data, os.read(key.fd, _CHUNK))
            if closing and not written:
                break
            closing = closing or len(written) < len(ready)
        for rank, rest in self._rest.items():
            if rest:
                self._show(rank, b"\n")

    def _show(self, rank: int, data: bytes) -> None:
        *lines, self._rest[rank] = (self._rest[rank] + data).split(b"\n")
        text = "".join(f"[rank {rank}] {line.decode(errors='replace')}\n" for line in lines)
        sys.stdout.write(text)
        sys.stdout.flush()
