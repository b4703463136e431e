"""One worker's process: how it is started, how its end is noticed, and how it is ended.

The pool owns the process. Between making the pipe and closing the parent's copy of the child's end no other worker
is started, and every forked child closes the parents' ends that it inherited, so that the two processes that a pipe
connects are the only ones that hold it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

import multiprocess

from harness.ipc import guard, guarding, worker
from harness.ipc.pickling import Parcel, encode

StartMethod: TypeAlias = Literal["spawn", "forkserver", "fork"]

_EXIT_STATUS_S = 1.0
"""How long a fork server may take to tell the status of a child that the kernel says has ended."""

_starting = threading.Lock()
_parents_ends: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def _close_inherited() -> None:
    """In a forked child, whoever forked it: the pipes of the parent's workers are none of our business."""
    global _starting  # noqa: PLW0603 - another thread of the parent may have held it
    _starting = threading.Lock()
    for end in list(_parents_ends):
        end.close()
    _parents_ends.clear()


os.register_at_fork(after_in_child=_close_inherited)


def encode_factory(factory: Callable[[int], Any], start_method: StartMethod) -> Callable[[int], Any] | Parcel:
    """What to hand to the child: under fork the callable itself, else its bytes, encoded once for all workers."""
    return factory if start_method == "fork" else encode(factory)


class WorkerProcess:
    """A running worker and the parent's end of its pipe.

    Attributes:
        index: position in the pool.
        pid: its process id, kept after its end.
        pipe: the parent's end, non-blocking.
        sentinel: a file descriptor that becomes readable when the process has ended.
    """

    def __init__(
        self,
        index: int,
        name: str,
        factory: Callable[[int], Any] | Parcel,
        start_method: StartMethod,
        preload: Sequence[str],
        hello_id: int,
    ) -> None:
        context = multiprocess.get_context(start_method)
        if start_method == "forkserver":
            guarding.clear_temporary_folder()
            # Heeded by the fork server when it starts, that is with the first such worker of this process.
            context.set_forkserver_preload(["harness.ipc.worker", *preload])
        self.index = index
        with _starting:
            self.pipe, childs_end = socket.socketpair()
            _parents_ends.add(self.pipe)
            try:
                self._process = context.Process(
                    target=worker.main,
                    args=(childs_end, index, factory, tuple(preload), hello_id),
                    name=f"{name}-{index}",
                    daemon=False,  # a daemon may have no children of its own, and engines do
                )
                self._process.start()
            except BaseException:
                self.pipe.close()
                raise
            finally:
                childs_end.close()
        self.pid: int = self._process.pid
        self.pipe.setblocking(False)
        self._pidfd = self._open_pidfd()
        self.sentinel: int = self._process.sentinel if self._pidfd is None else self._pidfd
        self._status: int | None = None
        self._released = False
        self._relatives: list[guard.Relative] = []
        guarding.watch_over(self.pid)

    def _open_pidfd(self) -> int | None:
        # multiprocess' own sentinel is a pipe that a grandchild may hold open; a pidfd speaks of this process alone.
        try:
            return os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return None

    @property
    def exitcode(self) -> int | None:
        """None while it runs; its exit status after, negative for the signal that ended it."""
        return self._status if self._released else self._process.exitcode

    @property
    def alive(self) -> bool:
        """Whether the process still runs (a stopped one does)."""
        return not self._released and not self.wait(0)

    def state(self) -> str:
        """What the process does, in a word of the system's: running, sleeping, stopped …"""
        import psutil

        try:
            return str(psutil.Process(self.pid).status())
        except psutil.Error:
            return "ended"

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the process to end. True when it has ended."""
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        return bool(poll.poll(max(0, timeout) * 1000))

    def status(self) -> int | None:
        """The exit status of a process that has ended, waiting a moment for it to become readable."""
        until = time.monotonic() + _EXIT_STATUS_S
        while self.exitcode is None and (left := until - time.monotonic()) > 0:
            multiprocess.connection.wait([self._process.sentinel], min(left, 0.05))
        return self.exitcode

    def terminate(self) -> None:
        """SIGTERM to the worker alone."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the worker and to everything that it started."""
        guard.kill_family(self.pid)

    def _signal(self, number: int) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def remember_family(self) -> None:
        """Note who descends from the worker now, to find them when it has ended and they have another parent."""
        self._relatives = guard.family(self.pid)

    def release(self) -> int | None:
        """After the end: reap it, end whom it left behind, close the pipe. Returns the exit status."""
        if self._released:
            return self._status
        guard.kill_family(self.pid, self._relatives, root_too=False)
        self._status = self.status()
        self._released = True
        self.pipe.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        guarding.released(self.pid)
        with contextlib.suppress(ValueError):
            self._process.close()
        return self._status
