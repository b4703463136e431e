"""Moves bytes between the parent's threads and all its workers.

Whoever waits for a reply does the work: the first thread to wait leads, that is it sleeps in ``poll()`` on every pipe
and sentinel, and delivers whatever arrives to whichever call it belongs to; the others sleep until it hands over. A
round trip therefore costs no switch between threads, and a request is written while replies are being read, so that
payloads of any size in both directions at once cannot block each other.

For what must go on while no thread waits (a large post, a call that an event loop awaits) a thread of the pool's own
leads, for as long as there is any.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from typing import TYPE_CHECKING

from harness.ipc import descriptors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from harness.ipc.envelope import Message
    from harness.ipc.link import Link

_READ = select.POLLIN
_READ_WRITE = select.POLLIN | select.POLLOUT
_LONGEST_S = 3600.0
"""One sleep in poll() or on the condition; then the deadline is looked at again."""
_ENDING_S = 0.5
"""A process closes its pipe a moment before it ends; after this much longer it is not about to end."""


class Exchange:
    """The pipes and sentinels of one pool."""

    def __init__(self, on_message: Callable[[Link, Message], None], on_end: Callable[[Link], None]) -> None:
        """Watch nothing yet.

        Args:
            on_message: called with a link and a whole message that came from it.
            on_end: called with a link whose process has ended, after its last message has been delivered.

        Both are called with :attr:`lock` held.
        """
        self.lock = threading.Lock()
        self.errands: set[object] = set()
        """What the pool's own thread carries on with. Under the lock."""
        self._turn = threading.Condition(self.lock)
        self._leading = False
        self._closed = False
        self._attendant: threading.Thread | None = None
        self._on_message = on_message
        self._on_end = on_end
        self._poll = select.poll()
        self._pipes: dict[int, Link] = {}
        self._sentinels: dict[int, Link] = {}
        self._unsent: set[Link] = set()
        self._waking, self._wake = os.pipe()
        for descriptor in (self._waking, self._wake):
            os.set_blocking(descriptor, False)
            descriptors.keep_from_children(descriptor)
        self._poll.register(self._waking, _READ)

    def attach(self, link: Link) -> None:
        """Watch a worker that has been started. Under the lock."""
        pipe, sentinel = link.process.pipe.fileno(), link.process.sentinel
        self._pipes[pipe] = link
        self._sentinels[sentinel] = link
        self._poll.register(pipe, _READ)
        self._poll.register(sentinel, _READ)
        self._nudge()

    def detach(self, link: Link) -> None:
        """Watch it no more; its descriptors are still open. Under the lock."""
        self._detach_pipe(link)
        if self._sentinels.pop(link.process.sentinel, None) is not None:
            self._poll.unregister(link.process.sentinel)

    def send(self, links: Iterable[Link]) -> None:
        """Send what the outboxes hold, as far as the pipes take it now. Under the lock."""
        for link in links:
            if link.flush():
                if link in self._unsent:
                    self._unsent.discard(link)
                    if link.mute is None:
                        self._poll.modify(link.process.pipe.fileno(), _READ)
            elif link not in self._unsent and link.mute is None:
                self._unsent.add(link)
                self._poll.modify(link.process.pipe.fileno(), _READ_WRITE)
                self._nudge()

    @property
    def unsent(self) -> bool:
        """Whether some request has not left yet. Under the lock."""
        return bool(self._unsent)

    def look(self) -> None:
        """Deliver what is already here, without waiting. Under the lock."""
        if not self._leading and not self._closed and (events := self._poll.poll(0)):
            self._deliver(events)
            self._turn.notify_all()

    def pump(self, done: Callable[[], object], until: float) -> bool:
        """Move bytes until ``done()``, or until the monotonic time ``until``; returns whether it is done."""
        with self._turn:
            while not done() and not self._closed:
                left = until - time.monotonic()
                if left <= 0:
                    self.look()  # a reply that is already here is no late reply
                    break
                if self._leading:
                    self._turn.wait(min(left, _LONGEST_S))
                else:
                    self._lead(min(left, _LONGEST_S))
            return bool(done())

    def attend(self) -> None:
        """Carry on in a thread of our own while there are errands or unsent requests. Under the lock."""
        if self._attendant is None:
            self._attendant = threading.Thread(target=self._carry_on, name="ipc-attendant", daemon=True)
            self._attendant.start()

    def notify(self) -> None:
        """Let every waiting thread look again. Under the lock."""
        self._nudge()
        self._turn.notify_all()

    def close(self) -> None:
        """Let every waiting thread go. Under the lock; the links have been detached."""
        self._closed = True
        self.notify()
        if not self._turn.wait_for(lambda: not self._leading, _ENDING_S):
            return  # closed from a signal handler, on top of the leader's own frame: it still polls them
        for descriptor in (self._waking, self._wake):
            descriptors.forget(descriptor)
            os.close(descriptor)

    def _carry_on(self) -> None:
        def finished() -> bool:
            if self.errands or self._unsent:
                return False
            self._attendant = None  # under the lock: the next errand starts another thread
            return True

        self.pump(finished, math.inf)

    def _lead(self, seconds: float) -> None:
        self._leading = True
        try:
            self.lock.release()
            try:
                events = self._poll.poll(math.ceil(seconds * 1000))
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
                if event & select.POLLOUT:
                    self.send([link])
                if event & ~select.POLLOUT:
                    self._read(link)
            elif descriptor in self._sentinels:
                ended.append(self._sentinels[descriptor])
            elif descriptor == self._waking:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._waking, 4096)
        for link in ended:
            # An event may be older than the descriptor's present owner: ask the process itself.
            if link.process.wait(0):
                while (message := link.receive()) is not None:
                    self._on_message(link, message)
                self._on_end(link)

    def _read(self, link: Link) -> None:
        """Deliver one message, and those that were read with it; for the others the pipe stays readable."""
        message = link.receive()
        while message is not None:
            self._on_message(link, message)
            message = link.receive() if link.buffered else None
        if link.mute is not None:
            self._silence(link, link.mute)

    def _silence(self, link: Link, why: str) -> None:
        """Nothing more can come from this worker. Unless it was asked to stop, it can serve nobody: end it."""
        self._detach_pipe(link)
        if not link.asked_to_stop and not link.process.wait(_ENDING_S):
            link.ended_by = f"{why}, so it was ended: nobody could have heard it any more"
            link.process.kill()

    def _detach_pipe(self, link: Link) -> None:
        pipe = link.process.pipe.fileno()
        if self._pipes.pop(pipe, None) is not None:
            self._poll.unregister(pipe)
        self._unsent.discard(link)

    def _nudge(self) -> None:
        """Let a leader that sleeps in poll() see what has been registered since."""
        if self._leading:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake, b"!")
