"""Which reply belongs to which call: ids, the calls in flight, and what a worker's end means for them."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Sequence

from harness.ipc.call import Call
from harness.ipc.envelope import Kind, Message, Outgoing
from harness.ipc.exchange import Exchange
from harness.ipc.failure import Failure, Kind as FailureKind
from harness.ipc.link import Link
from harness.ipc.pickling import Parcel


class Switchboard:
    """The calls in flight over the links of one pool.

    Attributes:
        links: one for each worker, in worker order; replaced by a restart.
        late: how many replies came after their call had stopped waiting, and were dropped.
    """

    def __init__(self) -> None:
        self.exchange = Exchange(self._on_message, self._on_end)
        self.links: list[Link] = []
        self.late = 0
        self._calls: dict[int, Call] = {}
        self._ids = itertools.count(1)
        self._flusher: threading.Thread | None = None

    def expect(self, method: str, indices: Iterable[int]) -> Call:
        """A call that waits for a reply of each of these workers, though nothing is sent."""
        call = Call(self, next(self._ids), method, indices)
        with self.exchange.lock:
            self._calls[call.id] = call
        return call

    def send(self, method: str, parcels: Sequence[Parcel]) -> Call:
        """Send one request to every worker. With a dead worker in the pool nobody is asked: the call has failed."""
        with self.exchange.lock:
            self.exchange.look()
            call = Call(self, next(self._ids), method, range(len(self.links)))
            self._calls[call.id] = call
            dead = {link.index for link in self.links if link.ended}
            if dead:
                self._refuse(call, dead)
            else:
                for link, parcel in zip(self.links, parcels, strict=True):
                    link.outbox.append(Outgoing(Kind.CALL, call.id, parcel))
                self.exchange.send(self.links)
        return call

    def post(self, parcel: Parcel) -> None:
        """Send a request that nobody answers to every worker that lives."""
        with self.exchange.lock:
            self.exchange.look()
            number = next(self._ids)
            for link in self.links:
                if not link.ended:
                    link.outbox.append(Outgoing(Kind.POST, number, parcel))
            self.exchange.send(self.links)

    def flush_behind(self) -> None:
        """See to it that what the pipes did not take yet is sent while the caller does something else."""
        with self.exchange.lock:
            if self.exchange.all_sent():
                return
            for link in self.links:
                for outgoing in link.outbox:
                    outgoing.own()
            if self._flusher is None:
                self._flusher = threading.Thread(target=self._flush, name="ipc-flush", daemon=True)
                self._flusher.start()

    def _flush(self) -> None:
        self.exchange.pump(self._flushed, float("inf"))

    def _flushed(self) -> bool:
        if not self.exchange.all_sent():
            return False
        self._flusher = None  # under the lock: whoever leaves something unsent from here on starts another
        return True

    def pump(self, done: Callable[[], object], until: float) -> bool:
        """See :meth:`Exchange.pump`."""
        return self.exchange.pump(done, until)

    def give_up(self, call: Call, failure_of: Callable[[int], Failure] | None) -> None:
        """See :class:`~harness.ipc.call.Carrier`."""
        with self.exchange.lock:
            for index in call.expects():
                failure = failure_of(index) if failure_of else None
                link = self.links[index]
                link.withdraw(call.id)
                self.exchange.send([link])
                if failure is not None:
                    call.arrive(index, failure)
            self._calls.pop(call.id, None)

    def overdue(self, call: Call, index: int, seconds: float) -> Failure:
        """See :class:`~harness.ipc.call.Carrier`."""
        link = self.links[index]
        state = link.process.state()
        waiting = next((one for one in link.outbox if one.call_id == call.id), None)
        if waiting is not None and not waiting.begun:
            said = f"did not take the request within {seconds:g} s, so it was withdrawn"
            return self._failure(link, "unsent", call.method, f"pid {link.process.pid} ({state}) {said}")
        said = f"no reply within {seconds:g} s"
        progress = link.progress
        if waiting is not None:
            said += "; it has not read the whole request"
        elif progress is not None:
            said += f"; {progress[0]} of {progress[1]} bytes of a reply have arrived"
        return self._failure(link, "silent", call.method, f"pid {link.process.pid} ({state}): {said}")

    def fail_all(self, kind: FailureKind, message: str) -> None:
        """Settle every reply that any call still waits for. Under the lock."""
        for call in list(self._calls.values()):
            for index in call.expects():
                call.arrive(index, self._failure(self.links[index], kind, call.method, message))
        self._calls.clear()
        self.exchange.notify()

    def bury(self, link: Link) -> None:
        """The worker has ended: every reply that it still owed is its death. Under the lock."""
        if link.ended:
            return
        at = time.monotonic()
        self.exchange.detach(link)
        link.bury(at)
        for call in list(self._calls.values()):
            if link.index in call.expects() and call.arrive(link.index, self._death(link, call.method)):
                del self._calls[call.id]

    def _on_message(self, link: Link, message: Message) -> None:
        call = self._calls.get(message.call_id)
        if call is None:
            self.late += 1
        elif call.arrive(link.index, message):
            del self._calls[call.id]
        link.started = True

    def _on_end(self, link: Link) -> None:
        self.bury(link)

    def _refuse(self, call: Call, dead: set[int]) -> None:
        names = ", ".join(map(str, sorted(dead)))
        for link in self.links:
            if link.index in dead:
                failure = self._death(link, call.method)
            else:
                said = (
                    f"was not asked, because worker {names} had ended; pool.restart({min(dead)}) replaces it"
                )
                failure = self._failure(link, "unsent", call.method, said)
            call.arrive(link.index, failure)
        del self._calls[call.id]

    def _death(self, link: Link, method: str) -> Failure:
        failure = self._failure(link, "died", method, link.epitaph or "")
        return failure.died(link.epitaph_at, link.process.exitcode)

    @staticmethod
    def _failure(link: Link, kind: FailureKind, method: str, message: str) -> Failure:
        return Failure(link.index, kind, "", message, "", (), time.monotonic(), method=method)
