"""One call in flight: who still owes a reply, what has arrived, and what the caller finally gets."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harness.ipc.envelope import Kind, Message
from harness.ipc.errors import WorkerFailed
from harness.ipc.failure import Failure, describe_exception, failed_posts, failure_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@dataclass(frozen=True, slots=True)
class Reply:
    """What one worker answered to one call: a value, or a failure."""

    value: Any = None
    failure: Failure | None = None


class Carrier(Protocol):
    """What a call needs of the pool that carries it."""

    def pump(self, done: Callable[[], object], until: float) -> bool:
        """Move bytes until ``done()`` or until the monotonic time ``until``; whether it is done."""

    def expire(self, call: Call, seconds: float) -> None:
        """Let every worker that still owes a reply fail for having been silent for ``seconds``."""

    def abandon(self, call: Call) -> None:
        """Expect no further reply."""


class Call:
    """A request that has been sent to the workers. It belongs to the thread that waits on it.

    Attributes:
        id: number of the call, never used twice in a pool.
        method: what was called.
        size: how many workers were asked.
        pending: indices of the workers whose reply is still owed.
        replies: what has arrived, by worker index; filled by :meth:`wait`.
    """

    def __init__(self, carrier: Carrier, call_id: int, method: str, indices: Iterable[int]) -> None:
        self.id = call_id
        self.method = method
        self.pending: set[int] = set(indices)
        self.size = len(self.pending)
        self.replies: dict[int, Reply] = {}
        self.on_settled: Callable[[], None] | None = None
        """Called once, by the thread that delivers the last reply; it must not block nor use the pool."""
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
        if not self.pending or not self._pump(time.monotonic() + timeout):
            return False
        self._take()
        return True

    def collect(self, timeout: float) -> None:
        """Wait until every worker has answered or failed; who has not in ``timeout`` seconds has failed."""
        until = time.monotonic() + timeout
        try:
            while self.pending and self._pump(until):
                self._take()
            if self.pending:
                self.expire(timeout)
        except BaseException:  # an interrupt: nobody will read what is still to come
            self.abandon()
            raise

    def results(self, timeout: float) -> list[Any]:
        """Wait for every worker; one result per worker, in worker order.

        Raises:
            WorkerFailed: at least one failed or did not answer within ``timeout`` seconds; raised only after every
                other worker's reply has been collected.
        """
        self.collect(timeout)
        failures = self.failures()
        if failures:
            raise WorkerFailed(self.method, failures, self.size)
        return [self.replies[index].value for index in sorted(self.replies)]

    def failures(self) -> list[Failure]:
        """The failures among the replies so far."""
        return [reply.failure for reply in self.replies.values() if reply.failure is not None]

    def expire(self, seconds: float) -> None:
        """The deadline of ``seconds`` has passed: every worker that still owes a reply has failed."""
        self._carrier.expire(self, seconds)
        self._take()

    def abandon(self) -> None:
        """Stop waiting for good: replies that still arrive are recognised by their id and dropped."""
        self._carrier.abandon(self)
        self.pending.clear()

    def expects(self, index: int) -> bool:
        """Whether nothing of this worker has arrived. Called under the pool's lock."""
        return index in self._expected

    def owing(self) -> list[int]:
        """The workers of which nothing has arrived. Called under the pool's lock."""
        return sorted(self._expected)

    def arrive(self, index: int, item: Message | Failure) -> bool:
        """Take delivery of a worker's reply; True when it was the last. Called under the pool's lock."""
        if index in self._expected:
            self._expected.discard(index)
            self._arrived.append((index, item))
        return not self._expected

    def unread(self) -> set[int]:
        """The workers whose reply the caller has not seen. Called under the pool's lock."""
        return self._expected | {index for index, _ in self._arrived}

    def _pump(self, until: float) -> bool:
        return self._carrier.pump(self._arrived.__len__, until)

    def _take(self) -> None:
        """Decode what has arrived, here and not in the thread that read it: decoding runs foreign code."""
        while self._arrived:
            index, item = self._arrived.popleft()
            self.pending.discard(index)
            self.replies[index] = (
                Reply(failure=item) if isinstance(item, Failure) else self._open(index, item)
            )

    def _open(self, index: int, message: Message) -> Reply:
        if message.kind is Kind.FAILURE:
            kind, told = message.decode()
            return Reply(failure=failure_from(told, worker=index, kind=kind, method=self.method))
        if message.kind is Kind.POSTED:
            return Reply(failure=failed_posts(index, message.decode()))
        try:
            return Reply(message.decode())
        except Exception as error:  # noqa: BLE001 - the value's own code runs in its unpickling
            told = describe_exception(error)
            return Reply(failure=failure_from(told, worker=index, kind="undecodable", method=self.method))
