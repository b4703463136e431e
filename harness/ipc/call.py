"""One call in flight: who still owes a reply, what has arrived, and what the caller finally gets."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from harness.ipc.envelope import Kind, Message
from harness.ipc.errors import WorkerFailed
from harness.ipc.failure import Failure, describe_exception, failure_from


@dataclass(frozen=True, slots=True)
class Reply:
    """What one worker answered to one call: a value, or a failure."""

    value: Any = None
    failure: Failure | None = None


class Carrier(Protocol):
    """What a call needs of the pool that carries it."""

    def pump(self, done: Callable[[], object], until: float) -> bool:
        """Move bytes until ``done()`` or until the monotonic time ``until``; whether it is done."""

    def give_up(self, call: Call, failure_of: Callable[[int], Failure] | None) -> None:
        """Expect no further reply to the call; settle each missing one as ``failure_of(worker)``, if given."""

    def overdue(self, call: Call, index: int, seconds: float) -> Failure:
        """The failure of a worker that has not answered within ``seconds``."""


class Call:
    """A request that has been sent to the workers. It belongs to the thread that waits on it.

    Attributes:
        id: number of the call, never used twice in a pool.
        method: what was called.
        pending: indices of the workers whose reply is still owed.
        replies: what has arrived, by worker index; filled by :meth:`wait`.
    """

    def __init__(self, carrier: Carrier, call_id: int, method: str, indices: Iterable[int]) -> None:
        self.id = call_id
        self.method = method
        self.pending: set[int] = set(indices)
        self.size = len(self.pending)
        self.replies: dict[int, Reply] = {}
        self._carrier = carrier
        # Filled by whichever thread reads the pipes, under the pool's lock; emptied by the caller's thread.
        self._expected: set[int] = set(self.pending)
        self._arrived: deque[tuple[int, Message | Failure]] = deque()

    def wait(self, timeout: float) -> bool:
        """Wait for the next reply, or for the death of a worker that owes one.

        Args:
            timeout: seconds; 0 looks without waiting.

        Returns:
            True when ``replies`` has grown; False when the time is up or nothing is pending.
        """
        if not self.pending:
            return False
        if not self._carrier.pump(self._arrived.__len__, time.monotonic() + timeout):
            return False
        self._take()
        return True

    def collect(self, timeout: float) -> None:
        """Wait until every worker has answered or failed; those that have not in ``timeout`` seconds have failed."""
        until = time.monotonic() + timeout
        try:
            while self.pending and self._carrier.pump(self._arrived.__len__, until):
                self._take()
            if self.pending:
                self.expire(timeout)
        except BaseException:  # an interrupt: nobody will read what is still to come
            self.abandon()
            raise

    def expire(self, seconds: float) -> None:
        """The deadline of ``seconds`` has passed: every worker that still owes a reply has failed."""
        self._carrier.give_up(self, lambda index: self._carrier.overdue(self, index, seconds))
        self._take()

    def results(self, timeout: float) -> list[Any]:
        """Wait for every worker; one result per worker, in worker order.

        Raises:
            WorkerFailed: at least one failed or did not answer within ``timeout`` seconds; raised only after
                every other worker's reply has been collected.
        """
        self.collect(timeout)
        failures = self.failures()
        if failures:
            raise WorkerFailed(self.method, failures, self.size)
        return [self.replies[index].value for index in sorted(self.replies)]

    def failures(self) -> list[Failure]:
        """The failures among the replies so far."""
        return [reply.failure for reply in self.replies.values() if reply.failure is not None]

    def abandon(self) -> None:
        """Stop waiting for good: replies that still arrive are recognised by their id and dropped."""
        self._carrier.give_up(self, None)
        self.pending.clear()

    def arrive(self, index: int, item: Message | Failure) -> bool:
        """The reading thread delivers; True when this was the last reply owed. Called under the pool's lock."""
        if index in self._expected:
            self._expected.discard(index)
            self._arrived.append((index, item))
        return not self._expected

    def expects(self) -> frozenset[int]:
        """Workers of which nothing has arrived. Called under the pool's lock."""
        return frozenset(self._expected)

    def _take(self) -> None:
        """Decode what has arrived, here and not in the reading thread: decoding runs foreign code."""
        while self._arrived:
            index, item = self._arrived.popleft()
            self.pending.discard(index)
            self.replies[index] = (
                Reply(failure=item) if isinstance(item, Failure) else self._open(index, item)
            )

    def _open(self, index: int, message: Message) -> Reply:
        if message.kind is Kind.FAILURE:
            first, *others = (
                failure_from(index, kind, description, method=method or self.method, posted=posted)
                for kind, method, posted, description in message.decode()
            )
            return Reply(failure=first.with_others(others))
        try:
            return Reply(value=message.decode())
        except Exception as error:  # noqa: BLE001 - the value's own code runs in its unpickling
            return Reply(
                failure=failure_from(index, "undecodable", describe_exception(error), method=self.method)
            )
