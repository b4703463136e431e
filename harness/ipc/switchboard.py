"""Which reply belongs to which call: ids, the calls in flight, and what a worker's end means for them."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from harness.ipc.call import Call
from harness.ipc.envelope import NOTHING, Kind, Outgoing
from harness.ipc.exchange import Exchange
from harness.ipc.failure import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from harness.ipc.envelope import Message
    from harness.ipc.failure import FailureKind
    from harness.ipc.link import Link
    from harness.ipc.pickling import Parcel

_REFUSED_S = 0.001
"""A refused call takes this long, off the lock: whoever asks again at once would keep it from the replacing thread."""


class Switchboard:
    """The calls in flight over the links of one pool.

    Attributes:
        links: one for each worker, in worker order; a restart replaces one.
        late: how many replies came when their call had stopped waiting, and were dropped.
    """

    def __init__(self) -> None:
        self.exchange = Exchange(self._on_message, self.bury)
        self.links: list[Link] = []
        self.late = 0
        self._calls: dict[int, Call] = {}
        self._ids = itertools.count(1)

    def expect(self, method: str, indices: Iterable[int]) -> Call:
        """A call that waits for a reply of each of these workers; whoever asked for it sends the requests."""
        call = Call(self, next(self._ids), method, indices)
        with self.exchange.lock:
            self._calls[call.id] = call
        return call

    def adopt(self, link: Link, call: Call, factory: Parcel) -> None:
        """Take up a worker that has been started; what it gets to read first is how to build its object."""
        with self.exchange.lock:
            self.links[link.index : link.index + 1] = [link]
            self.exchange.attach(link)
            link.outbox.append(Outgoing(Kind.BUILD, call.id, factory))
            self.exchange.send([link])

    def dismiss(self, links: Iterable[Link], call: Call) -> None:
        """Ask workers to stop when they have done what they were asked before."""
        with self.exchange.lock:
            asked = [link for link in links if not link.ended]
            for link in asked:
                link.asked_to_stop = True
                link.outbox.append(Outgoing(Kind.CLOSE, call.id, NOTHING))
            self.exchange.send(asked)

    def send(self, method: str, parcels: Sequence[Parcel]) -> Call:
        """Send one request to every worker. With a dead worker in the pool nobody is asked: the call has failed."""
        with self.exchange.lock:
            self.exchange.look()
            call = Call(self, next(self._ids), method, range(len(self.links)))
            self._calls[call.id] = call
            dead = [link.index for link in self.links if link.ended]
            if dead:
                self._refuse(call, dead)
            else:
                for link, parcel in zip(self.links, parcels, strict=True):
                    link.outbox.append(Outgoing(Kind.CALL, call.id, parcel))
                self.exchange.send(self.links)
        if dead:
            time.sleep(_REFUSED_S)
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

    def carry_on(self, errand: Call | None = None, on_settled: Callable[[], None] | None = None) -> None:
        """See to what must go on while the caller does something else.

        What the pipes did not take yet is copied, because the caller may now change it, and sent as they take it.

        Args:
            errand: a call whose replies are to be read though no thread waits for them.
            on_settled: called once the last of them is here.
        """
        exchange = self.exchange
        with exchange.lock:
            if exchange.unsent:
                for outgoing in [one for link in self.links for one in link.outbox]:
                    outgoing.own()
            if errand is not None and errand.id in self._calls:
                errand.on_settled = on_settled
                exchange.errands.add(errand)
            elif on_settled is not None:
                on_settled()
            if exchange.unsent or exchange.errands:
                exchange.attend()

    def pump(self, done: Callable[[], object], until: float) -> bool:
        """See :meth:`Exchange.pump`."""
        return self.exchange.pump(done, until)

    def abandon(self, call: Call) -> None:
        """See :class:`~harness.ipc.call.Carrier`."""
        with self.exchange.lock:
            self._give_up(call, call.unread())
            self._settled(call)

    def expire(self, call: Call, seconds: float) -> None:
        """See :class:`~harness.ipc.call.Carrier`."""
        with self.exchange.lock:
            silent = call.owing()
            for index in silent:
                call.arrive(index, self._overdue(call, self.links[index], seconds))
            self._give_up(call, silent)
            self._settled(call)

    def close_calls(self) -> None:
        """Let every reply that any call still waits for fail as ``closed``. Under the lock."""
        for call in list(self._calls.values()):
            for index in call.owing():
                said = "the pool was closed before it answered"
                failure = Failure(worker=index, kind="closed", method=call.method, message=said)
                call.arrive(index, failure)
            self._settled(call)
        self.exchange.notify()

    def bury(self, link: Link) -> None:
        """The worker has ended: what it still owed is its death. Under the lock."""
        if link.ended:
            return
        self.exchange.detach(link)
        link.bury()
        for call in list(self._calls.values()):
            if call.expects(link.index) and call.arrive(link.index, self._death(link, call.method)):
                self._settled(call)

    def _on_message(self, link: Link, message: Message) -> None:
        link.started = True
        call = self._calls.get(message.call_id)
        if call is None:
            self.late += 1
        elif call.arrive(link.index, message):
            self._settled(call)

    def _settled(self, call: Call) -> None:
        self._calls.pop(call.id, None)
        if call in self.exchange.errands:
            self.exchange.errands.discard(call)
            self.exchange.notify()
            if call.on_settled is not None:
                call.on_settled()

    def _give_up(self, call: Call, indices: Iterable[int]) -> None:
        # A worker that could not be launched has no link.
        links = [self.links[index] for index in indices if index < len(self.links)]
        for link in links:
            link.give_up(call.id)
        self.exchange.send(links)

    def _refuse(self, call: Call, dead: list[int]) -> None:
        names = ", ".join(map(str, dead))
        said = f"was not asked, because worker {names} has ended; pool.restart({dead[0]}) replaces it"
        for link in self.links:
            if link.ended:
                call.arrive(link.index, self._death(link, call.method))
            else:
                call.arrive(link.index, self._failure(link, "unsent", call.method, said))
        self._settled(call)

    def _overdue(self, call: Call, link: Link, seconds: float) -> Failure:
        who = f"pid {link.process.pid} ({link.process.state()})"
        waiting = next((one for one in link.outbox if one.call_id == call.id), None)
        if waiting is not None and not waiting.begun:
            said = f"did not begin to read the request within {seconds:g} s, so it was withdrawn"
            return self._failure(link, "unsent", call.method, f"{who} {said}")
        said = f"no reply within {seconds:g} s"
        if waiting is not None:
            said += "; it has not read the whole request"
        elif (progress := link.progress) is not None:
            said += f"; {progress[0]} of {progress[1]} bytes of a reply have arrived"
        return self._failure(link, "silent", call.method, f"{who}: {said}")

    def _death(self, link: Link, method: str) -> Failure:
        failure = self._failure(link, "died", method, link.epitaph or "")
        return replace(failure, at=link.epitaph_at, exit_status=link.process.exitcode)

    @staticmethod
    def _failure(link: Link, kind: FailureKind, method: str, message: str) -> Failure:
        return Failure(worker=link.index, kind=kind, method=method, message=message)
