"""A pool of worker processes that fails well.

::

     parent process                                              worker process i of size
    ┌─────────────────────────────────────────────┐             ┌──────────────────────────────┐
    │ caller's thread                             │             │ worker.main                  │
    │   call(method, …)                           │             │   subject = factory(i)       │
    │     │ encode once                           │  socketpair │     ▲ decode                 │
    │     ▼                                       │  envelopes  │     │                        │
    │   Call(id) ──► Link i: outbox ──────────────┼────────────►│   CALL id ─► subject.method  │
    │     ▲          Link i: incoming ◄───────────┼─────────────┤   RESULT id or FAILURE id    │
    │     │ by id; an id nobody waits for          │             │     ▲ encoded before sent    │
    │     │ is a late reply: dropped               │             └──────────────────────────────┘
    │   Exchange.pump ◄── poll(pipes, sentinels) ◄┼── pidfd: the process has ended
    └─────────────────────────────────────────────┘
               │ writing end of a pipe; closes when the parent ends, however it ends
               ▼
     guard process: kills the workers and their descendants

A call is sent to every worker, every worker's answer (a result, a failure, its death, or silence past the deadline)
is collected, and only then is anything raised. The pool owns its processes: see :meth:`WorkerPool.close`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Self

from harness.ipc import door
from harness.ipc.crew import Crew
from harness.ipc.errors import ForeignProcess, PoolClosed, UnreportedPost
from harness.ipc.process import Recipe
from harness.ipc.switchboard import Switchboard

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from harness.ipc.call import Call
    from harness.ipc.process import StartMethod, WorkerProcess

_DROPPED_S = 1.0
"""Grace for the workers of a pool that nobody closed."""

_open_pools: weakref.WeakSet[WorkerPool] = weakref.WeakSet()


class WorkerPool:
    """``size`` processes, each with an object of its own, whose methods are called together.

    The pool owns its processes. They end with :meth:`close`, with the end of the ``with`` block, at interpreter exit,
    and within seconds of this process' death by whatever cause; each in a session of its own, which is killed with
    it. Any thread may call; a process forked from this one may not.
    """

    def __init__(
        self,
        factory: Callable[[int], Any],
        size: int,
        *,
        start_method: StartMethod = "spawn",
        timeout: float = 60.0,
        start_timeout: float = 60.0,
        name: str = "worker",
        preload: Sequence[str] = (),
    ) -> None:
        """Start the workers and wait until each has built its object.

        Args:
            factory: called in each worker as ``factory(index)``; what it returns is the object whose methods are
                called. Under ``spawn`` and ``forkserver`` it is sent by pickle or dill, so lambdas and closures do.
            size: number of workers, at least 1.
            start_method: ``spawn``, ``forkserver`` or ``fork``; every promise holds under each.
            timeout: deadline in seconds of a call that names none; ``math.inf`` for none.
            start_timeout: seconds within which every worker must have built its object.
            name: what the processes are called.
            preload: modules that a worker imports before anything else; one that is not installed is left out. Under
                ``forkserver`` the server imports them once, if this is the first pool of this process that uses it.

        Raises:
            UsageError: an argument is not what is described here, or ``factory`` cannot be sent.
            WorkerFailed: a worker could not start; all have been ended.
        """
        door.require_startable(factory, size, start_method)
        self.size = size
        self.name = name
        self.start_method: StartMethod = start_method
        self.timeout = door.seconds(timeout, "timeout")
        self.start_timeout = door.seconds(start_timeout, "start_timeout")
        self._owner = os.getpid()
        encoded = door.encode_factory(factory, start_method)
        self._closed = False
        self._replacing = threading.Lock()
        self._board = Switchboard()
        self._crew = Crew(self._board, Recipe(name, factory, start_method, tuple(preload)), encoded)
        _open_pools.add(self)
        try:
            self._crew.start(range(size), self.start_timeout)
        except BaseException:
            self.close(grace=0)
            raise

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers' processes, in worker order: pid, exit status, and the means to end one."""
        return [link.process for link in self._board.links]

    @property
    def late_replies(self) -> int:
        """How many replies came after their call had stopped waiting, and were dropped."""
        return self._board.late

    def pids(self) -> list[int]:
        """Process ids in worker order."""
        return [process.pid for process in self.workers]

    def call(self, method: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> list[Any]:
        """Call a method on every worker with the same arguments.

        Args:
            method: name of a method of the workers' object.
            *args: its positional arguments.
            timeout: seconds until every worker must have answered; the pool's own by default.
            **kwargs: its keyword arguments.

        Returns:
            One result per worker, in worker order.

        Raises:
            WorkerFailed: at least one failed; every other reply has been collected, and the pool can be used on.
                With a worker in the pool that has ended, nobody is asked.
            UsageError: as for :meth:`begin`, or a deadline that is not positive.
        """
        seconds = self._deadline(timeout)
        return self._send(method, [(args, kwargs)]).results(seconds)

    def scatter(
        self, method: str, chunks: Sequence[tuple[Any, ...]], timeout: float | None = None
    ) -> list[Any]:
        """Call a method on every worker, each with its own tuple of positional arguments; else as :meth:`call`."""
        seconds = self._deadline(timeout)
        door.require_chunks(chunks, self.size)
        return self._send(method, [(chunk, {}) for chunk in chunks]).results(seconds)

    def begin(self, method: str, /, *args: Any, **kwargs: Any) -> Call:
        """Send a call to every worker and return at once; the call collects the replies when it is asked to.

        Raises:
            UsageError: the arguments cannot be sent (then nothing was), or the pool is closed or another process's.
        """
        call = self._send(method, [(args, kwargs)])
        self._board.carry_on()
        return call

    def post(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        """Call a method on every worker that lives and wait for nothing; there is no reply.

        A failure surfaces on the next call, as what it is (``Failure.posted``), and that call does not run on the
        worker whose post failed. When no call follows, ``close`` warns of it (:class:`UnreportedPost`).
        """
        self._require_usable()
        self._board.post(door.encode_request(method, args, kwargs))
        self._board.carry_on()

    async def acall(
        self,
        method: str,
        /,
        *args: Any,
        timeout: float | None = None,  # noqa: ASYNC109 - the workers' deadline, as in call
        **kwargs: Any,
    ) -> list[Any]:
        """:meth:`call` for an event loop, which stays free meanwhile. Cancelling it drops the replies to come."""
        import asyncio  # the worker imports this package too, and has no use for it

        seconds = self._deadline(timeout)
        until = time.monotonic() + seconds
        call = self._send(method, [(args, kwargs)])
        loop = asyncio.get_running_loop()
        settled = asyncio.Event()
        self._board.carry_on(call, lambda: _tell(loop, settled))
        try:
            async with asyncio.timeout(None if seconds == float("inf") else until - time.monotonic()):
                await settled.wait()
        except TimeoutError:
            call.expire(seconds)
        except BaseException:
            call.abandon()
            raise
        return call.results(0)

    def restart(self, index: int) -> None:
        """Replace a worker, dead or alive, by a fresh one; what it still owes fails as its death.

        Raises:
            WorkerFailed: the new worker could not start; the pool is left with an ended worker at ``index``.
            UsageError: no such worker.
        """
        self._require_usable()
        door.require_index(index, self.size)
        with self._replacing:
            self._require_usable()
            reason = f"was ended by pool.restart({index})"
            self._crew.end([self._board.links[index]], grace=0, reason=reason)
            try:
                self._crew.start([index], self.start_timeout)
            except BaseException:
                self._crew.end([self._board.links[index]], grace=0, reason=reason)
                raise

    def close(self, grace: float = 5.0) -> None:
        """Ask the workers to stop, wait, terminate, then kill them with all that descends from them; reap them.

        Calls that other threads still wait for fail as ``closed``. Closing a closed pool does nothing.

        Args:
            grace: seconds to let them finish what they are doing; 0 kills at once.
        """
        self._require_owner()
        with self._board.exchange.lock:
            if self._closed:
                return
            self._closed = True
            self._board.close_calls()
        with self._replacing:
            try:
                unreported = self._crew.end(self._board.links, grace=grace, reason="was ended by close()")
            finally:
                with self._board.exchange.lock:
                    self._board.close_calls()
                    self._board.exchange.close()
                _open_pools.discard(self)
        for failure in unreported:
            warnings.warn(failure.headline(), UnreportedPost, stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() == self._owner:
            self.close()

    def __del__(self) -> None:
        if getattr(self, "_closed", True) or os.getpid() != self._owner:
            return
        try:
            warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)
        finally:
            lock = self._board.exchange.lock
            if lock.acquire(blocking=False):
                lock.release()
                self.close(grace=_DROPPED_S)
            else:  # the collector may run in a thread that is in the middle of the pool's own work
                threading.Thread(target=self.close, args=(_DROPPED_S,), daemon=True).start()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<WorkerPool {self.name!r}: {self.size} workers by {self.start_method}, {state}>"

    def _send(self, method: str, requests: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> Call:
        self._require_usable()
        parcels = [door.encode_request(method, args, kwargs) for args, kwargs in requests]
        return self._board.send(method, parcels if len(parcels) == self.size else parcels * self.size)

    def _deadline(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else door.seconds(timeout, "timeout")

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise ForeignProcess(
                f"this pool belongs to process {self._owner}, from which {os.getpid()} was forked: make one of its own"
            )

    def _require_usable(self) -> None:
        self._require_owner()
        if self._closed:
            raise PoolClosed("the pool is closed; make a new one")


def _tell(loop: asyncio.AbstractEventLoop, settled: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody waits any more
        loop.call_soon_threadsafe(settled.set)


@atexit.register
def _close_open_pools() -> None:
    for pool in list(_open_pools):
        if pool._owner == os.getpid():  # noqa: SLF001 - ours
            pool.close(grace=_DROPPED_S)
