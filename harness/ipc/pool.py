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

import asyncio
import atexit
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from harness.errors import UsageError
from harness.ipc.call import Call
from harness.ipc.envelope import Kind, Outgoing
from harness.ipc.errors import ForeignProcess, PoolClosed, WorkerFailed
from harness.ipc.link import Link
from harness.ipc.pickling import Parcel, encode
from harness.ipc.process import StartMethod, WorkerProcess, encode_factory
from harness.ipc.switchboard import Switchboard

START_METHODS: tuple[StartMethod, ...] = ("spawn", "forkserver", "fork")

_TERMINATE_S = 1.0
"""Between SIGTERM and SIGKILL: time for an engine's own handlers, not for its work."""
_KILLED_S = 5.0
"""A killed process may take a moment to give back its memory."""
_MORE_START_FAILURES_S = 0.2
"""After one worker failed to start, how long to wait for others to say that they failed too."""

_open_pools: weakref.WeakSet["WorkerPool"] = weakref.WeakSet()


class WorkerPool:
    """``size`` processes, each with an object of its own, whose methods are called together.

    Args:
        factory: called in each worker as ``factory(index)``; what it returns is the object whose methods are called.
            Under ``spawn`` and ``forkserver`` it is sent by pickle or dill, so lambdas and closures do.
        size: number of workers, at least 1.
        start_method: ``spawn``, ``forkserver`` or ``fork``; every promise holds under each.
        timeout: deadline in seconds of a call that names none; ``math.inf`` for none.
        start_timeout: seconds within which every worker must have built its object.
        name: what the processes are called.
        preload: modules that a worker imports before anything else; missing ones are left out. Under ``forkserver``
            the server imports them once, if this is the first pool of this process that uses it.

    Raises:
        UsageError: an argument is not what is described here, or ``factory`` cannot be sent.
        WorkerFailed: a worker could not start; the others have been ended.
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
        _require_startable(factory, size, start_method)
        self.size = size
        self.timeout = _seconds(timeout, "timeout")
        self.start_timeout = _seconds(start_timeout, "start_timeout")
        self.start_method: StartMethod = start_method
        self.name = name
        self._owner = os.getpid()
        self._preload = tuple(preload)
        self._closed = False
        self._replacing = threading.Lock()
        self._board = Switchboard()
        try:
            self._factory = encode_factory(factory, start_method)
        except BaseException as error:
            raise UsageError(
                f"the factory cannot be sent to a worker under {start_method} ({type(error).__name__}: {error}); "
                "let it refer to nothing that lives in this process only"
            ) from error
        _open_pools.add(self)
        try:
            hello = self._board.expect("start", range(size))
            for index in range(size):
                self._launch(index, hello.id)
            self._await_start(hello)
        except BaseException:
            self.close(grace=0)
            raise

    @property
    def workers(self) -> list[WorkerProcess]:
        """The workers' processes, in worker order: pid, exit status, and the means to end one."""
        return [link.process for link in self._board.links]

    def pids(self) -> list[int]:
        """Process ids in worker order."""
        return [process.pid for process in self.workers]

    def begin(self, method: str, /, *args: Any, **kwargs: Any) -> Call:
        """Send a call to every worker and return at once; its :class:`Call` collects the replies.

        Raises:
            UsageError: the arguments cannot be sent, or the pool is closed or another process's.
        """
        call = self._begin(method, [(args, kwargs)])
        self._board.flush_behind()
        return call

    def call(self, method: str, /, *args: Any, timeout: float | None = None, **kwargs: Any) -> list[Any]:
        """Call a method on every worker with the same arguments.

        Args:
            method: name of a method of the workers' object.
            timeout: seconds until every worker must have answered; the pool's own by default.

        Returns:
            One result per worker, in worker order.

        Raises:
            WorkerFailed: at least one failed; every other reply has been collected, and the pool can be used on.
            UsageError: as for :meth:`begin`, or a deadline that is not positive.
        """
        seconds = self._deadline(timeout)
        return self._begin(method, [(args, kwargs)]).results(seconds)

    def scatter(
        self, method: str, chunks: Sequence[tuple[Any, ...]], timeout: float | None = None
    ) -> list[Any]:
        """Call a method on every worker, each with its own tuple of positional arguments; else as :meth:`call`."""
        seconds = self._deadline(timeout)
        if len(chunks) != self.size or not all(isinstance(chunk, tuple) for chunk in chunks):
            raise UsageError(f"scatter needs one tuple of arguments for each of the {self.size} workers")
        return self._begin(method, [(chunk, {}) for chunk in chunks]).results(seconds)

    def post(self, method: str, /, *args: Any, **kwargs: Any) -> None:
        """Call a method on every worker and wait for nothing; there is no reply.

        A failure surfaces on the next call, as what it is (``Failure.posted``), and that call does not run on the
        worker whose post failed.
        """
        self._require_usable()
        self._board.post(self._encode(method, args, kwargs))
        self._board.flush_behind()

    async def acall(
        self, method: str, /, *args: Any, timeout: float | None = None, **kwargs: Any
    ) -> list[Any]:
        """:meth:`call` for an event loop, which stays free meanwhile. Cancelling it drops the replies to come."""
        seconds = self._deadline(timeout)
        call = self._begin(method, [(args, kwargs)])
        try:
            return await asyncio.to_thread(call.results, seconds)
        except asyncio.CancelledError:
            call.abandon()
            raise

    def restart(self, index: int) -> None:
        """Replace a worker, dead or alive, by a fresh one; what it still owes fails as its death.

        Raises:
            WorkerFailed: the new worker could not start; the pool is left with a dead worker at ``index``.
        """
        self._require_usable()
        if not (isinstance(index, int) and 0 <= index < self.size):
            raise UsageError(f"restart needs a worker's index, 0 to {self.size - 1}, not {index!r}")
        with self._replacing:
            self._end([self._board.links[index]], grace=0)
            hello = self._board.expect("start", [index])
            self._launch(index, hello.id)
            self._await_start(hello)

    def close(self, grace: float = 5.0) -> None:
        """Ask the workers to stop, wait, then terminate, then kill them with all that descends from them; reap them.

        Calls that other threads still wait for fail as ``closed``. Closing a closed pool does nothing.

        Args:
            grace: seconds to let them finish what they are doing; 0 kills at once.
        """
        self._require_owner()
        with self._board.exchange.lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._end(self._board.links, grace=grace)
        finally:
            with self._board.exchange.lock:
                self._board.fail_all("closed", "the pool was closed before it answered")
                self._board.exchange.close()
            _open_pools.discard(self)

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
        warnings.warn(f"{self!r} was never closed", ResourceWarning, source=self, stacklevel=2)
        self.close(grace=1.0)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<WorkerPool {self.name!r}: {self.size} workers by {self.start_method}, {state}>"

    def _begin(self, method: str, requests: Sequence[tuple[tuple[Any, ...], dict[str, Any]]]) -> Call:
        self._require_usable()
        parcels = [self._encode(method, args, kwargs) for args, kwargs in requests]
        return self._board.send(method, parcels if len(parcels) == self.size else parcels * self.size)

    def _encode(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parcel:
        if not isinstance(method, str):
            raise UsageError(f"a call needs the name of a method, not {method!r}")
        try:
            return encode((method, args, kwargs))
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            raise UsageError(
                f"the arguments of {method!r} cannot be sent to a worker ({type(error).__name__}: {error}); "
                "nothing was sent"
            ) from error

    def _launch(self, index: int, hello_id: int) -> None:
        process = WorkerProcess(index, self.name, self._factory, self.start_method, self._preload, hello_id)
        link = Link(process)
        with self._board.exchange.lock:
            self._board.links[index : index + 1] = [link]
            self._board.exchange.attach(link)

    def _await_start(self, hello: Call) -> None:
        until = time.monotonic() + self.start_timeout
        while hello.wait(until - time.monotonic()):
            if hello.failures():
                until = min(until, time.monotonic() + _MORE_START_FAILURES_S)
        if hello.pending and not hello.failures():
            hello.expire(self.start_timeout)
        if hello.failures():
            hello.abandon()
            raise WorkerFailed("start", hello.failures(), hello.size)

    def _end(self, links: Sequence[Link], grace: float) -> None:
        board = self._board

        def ended() -> bool:
            return all(link.ended for link in links)

        def living() -> list[Link]:
            with board.exchange.lock:
                return [link for link in links if not link.ended]

        if grace > 0:
            self._ask_to_stop(living())
            board.pump(ended, time.monotonic() + grace)
            for link in living():
                link.process.terminate()
            board.pump(ended, time.monotonic() + _TERMINATE_S)
        for link in living():
            link.process.kill()
        board.pump(ended, time.monotonic() + _KILLED_S)

    def _ask_to_stop(self, links: Sequence[Link]) -> None:
        parcel = encode(None)
        for link in links:
            link.process.remember_family()
        with self._board.exchange.lock:
            asked = [link for link in links if not link.ended]
            for link in asked:
                link.outbox.append(Outgoing(Kind.CLOSE, 0, parcel))
            self._board.exchange.send(asked)

    def _deadline(self, timeout: float | None) -> float:
        return self.timeout if timeout is None else _seconds(timeout, "timeout")

    def _require_owner(self) -> None:
        if os.getpid() != self._owner:
            raise ForeignProcess(
                f"this pool belongs to process {self._owner}, and process {os.getpid()} was forked from it; "
                "make a pool of your own here"
            )

    def _require_usable(self) -> None:
        self._require_owner()
        if self._closed:
            raise PoolClosed("the pool is closed; make a new one")


def _require_startable(factory: object, size: object, start_method: object) -> None:
    if not callable(factory):
        raise UsageError(f"factory must be callable as factory(index), and {factory!r} is not callable")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(f"a pool needs a whole number of workers, at least 1, not {size!r}")
    if start_method not in START_METHODS:
        raise UsageError(f"start_method must be one of {', '.join(START_METHODS)}, not {start_method!r}")


def _seconds(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"{what} must be a positive number of seconds, not {value!r}")
    return float(value)


@atexit.register
def _close_open_pools() -> None:
    for pool in list(_open_pools):
        if pool._owner == os.getpid():  # noqa: SLF001 - ours
            pool.close(grace=1.0)
