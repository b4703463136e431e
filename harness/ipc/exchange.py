"""Moves bytes between the parent's threads and all its workers, without a thread of its own.

Whoever waits for a reply does the work: the first thread to wait leads, that is it sleeps in ``poll()`` on every
pipe and sentinel, and delivers whatever arrives to whichever call it belongs to; the others sleep until it hands over.
A round trip therefore costs no switch between threads, and a request can be written while replies are being read, so
payloads of any size in both directions at once cannot block each other.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable, Iterable

from harness.ipc.envelope import Message
from harness.ipc.link import Link

_READ = select.POLLIN
_READ_WRITE = select.POLLIN | select.POLLOUT
_LONGEST_POLL_MS = 3_600_000


class Exchange:
    """The pipes and sentinels of one pool.

    Args:
        on_message: called with a link and a whole message that it sent.
        on_end: called with a link whose process has ended, after its last message was delivered.

    Both are called with :attr:`lock` held.
    """

    def __init__(self, on_message: Callable[[Link, Message], None], on_end: Callable[[Link], None]) -> None:
        self.lock = threading.Lock()
        self._turn = threading.Condition(self.lock)
        self._leading = False
        self._on_message = on_message
        self._on_end = on_end
        self._poll = select.poll()
        self._pipes: dict[int, Link] = {}
        self._sentinels: dict[int, Link] = {}
        self._unsent: set[Link] = set()
        self._waking, self._wake = os.pipe()
        os.set_blocking(self._waking, False)
        os.set_blocking(self._wake, False)
        self._poll.register(self._waking, _READ)

    def attach(self, link: Link) -> None:
        """Watch a worker that has been started. Under the lock."""
        pipe = link.process.pipe.fileno()
        self._pipes[pipe] = link
        self._sentinels[link.process.sentinel] = link
        self._poll.register(pipe, _READ)
        self._poll.register(link.process.sentinel, _READ)
        self._nudge()

    def detach(self, link: Link) -> None:
        """Watch it no more; its descriptors are still open. Under the lock."""
        self._unsent.discard(link)
        pipe, sentinel = link.process.pipe.fileno(), link.process.sentinel
        if self._pipes.pop(pipe, None) is not None:
            self._poll.unregister(pipe)
        if self._sentinels.pop(sentinel, None) is not None:
            self._poll.unregister(sentinel)

    def send(self, links: Iterable[Link]) -> bool:
        """Send what the outboxes hold, as far as the pipes take it now. True when all has gone. Under the lock."""
        everything = True
        for link in links:
            if link.flush():
                if link in self._unsent:
                    self._unsent.discard(link)
                    self._poll.modify(link.process.pipe.fileno(), _READ)
                continue
            everything = False
            if link not in self._unsent:
                self._unsent.add(link)
                self._poll.modify(link.process.pipe.fileno(), _READ_WRITE)
                self._nudge()
        return everything

    def look(self) -> None:
        """Deliver what is already here, without waiting. Under the lock."""
        if not self._leading:
            self._deliver(self._poll.poll(0))
            self._turn.notify_all()

    def all_sent(self) -> bool:
        """Whether every request has left."""
        return not self._unsent

    def pump(self, done: Callable[[], object], until: float) -> bool:
        """Move bytes until ``done()`` is true or the monotonic time ``until`` has come; returns whether it is done."""
        with self._turn:
            while not done():
                left = until - time.monotonic()
                if left <= 0:
                    # One look at least: a reply that is already here is no late reply.
                    self.look()
                    return bool(done())
                if self._leading:
                    self._turn.wait(min(left, threading.TIMEOUT_MAX))
                else:
                    self._lead(left)
            return True

    def notify(self) -> None:
        """Something that ``done`` may ask for has changed. Under the lock."""
        self._nudge()
        self._turn.notify_all()

    def close(self) -> None:
        """Let go of the waker; the links have been detached. Under the lock."""
        for descriptor in (self._waking, self._wake):
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def _lead(self, seconds: float) -> None:
        self._leading = True
        try:
            self.lock.release()
            try:
                events = self._poll.poll(
                    min(math.ceil(seconds * 1000), _LONGEST_POLL_MS) if seconds < 1e9 else None
                )
            finally:
                self.lock.acquire()
            self._deliver(events)
        finally:
            self._leading = False
            self._turn.notify_all()

    def _deliver(self, events: list[tuple[int, int]]) -> None:
        ended = []
        for descriptor, event in events:
            link = self._pipes.get(descriptor)
            if link is not None:
                if event & ~select.POLLOUT:
                    self._read(link)
                if event & select.POLLOUT:
                    self.send([link])
            elif descriptor in self._sentinels:
                ended.append(self._sentinels[descriptor])
            elif descriptor == self._waking:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._waking, 4096)
        for link in ended:
            if link.process.wait(0):
                self._read(link, to_the_end=True)
                self._on_end(link)

    def _read(self, link: Link, *, to_the_end: bool = False) -> None:
        """Deliver one message; the pipe stays readable while there are more. At a worker's end, deliver them all."""
        while (message := link.receive()) is not None:
            self._on_message(link, message)
            if not to_the_end:
                return
        if link.closed_pipe and not to_the_end:
            self._on_closed_pipe(link)

    def _on_closed_pipe(self, link: Link) -> None:
        """Nothing can come from this worker any more. If it does not end by itself, end it: it can serve nobody."""
        pipe = link.process.pipe.fileno()
        if self._pipes.pop(pipe, None) is not None:
            self._poll.unregister(pipe)
            self._unsent.discard(link)
        if not link.process.wait(_ENDING_S):
            link.process.kill()

    def _nudge(self) -> None:
        """Let a leader that sleeps in poll() see what has been registered since."""
        if self._leading:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b"!")


_ENDING_S = 0.5
"""A process closes its pipe a moment before it ends; this much later it is not about to end."""
