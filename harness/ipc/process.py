"""One worker's process: how it is started, how its end is noticed, and how it is ended.

The pool owns the process. Between making the pipe and closing the parent's copy of the child's end no other worker
is started, and every forked child closes the ends that it inherited, so that the two processes that a pipe connects
are the only ones that hold it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import multiprocess
import multiprocess.connection

from harness.ipc import descriptors, guard, guarding, worker

if TYPE_CHECKING:
    from collections.abc import Callable

StartMethod: TypeAlias = Literal["spawn", "forkserver", "fork"]

_EXIT_STATUS_S = 1.0
"""How long a fork server may take to tell the status of a child that the kernel says has ended."""

_starting = threading.Lock()


def _forget_lock() -> None:
    """Another thread of the parent may have held it at the fork; nobody in the child will release it."""
    global _starting  # noqa: PLW0603
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What every worker of a pool is made from."""

    name: str
    factory: Callable[[int], Any]
    """Handed over as it is under fork; sent as the first message under the other start methods."""
    start_method: StartMethod
    preload: tuple[str, ...]


class WorkerProcess:
    """A worker's process and the parent's end of its pipe.

    Attributes:
        index: position in the pool.
        pid: its process id, kept after its end.
        pipe: the parent's end, non-blocking.
        sentinel: a descriptor that becomes readable when the process has ended.
    """

    def __init__(self, recipe: Recipe, index: int) -> None:
        """Start the process and return while it is still coming up.

        Raises:
            OSError: the system refuses another process or descriptor.
        """
        context = multiprocess.get_context(recipe.start_method)
        if recipe.start_method == "forkserver":
            guarding.clear_temporary_folder()
            # Heeded by the fork server when it starts, that is with the first such worker of this process.
            context.set_forkserver_preload([worker.__name__, *recipe.preload])
        self.index = index
        self._released = False
        self._status: int | None = None
        self._forked_elsewhere = recipe.start_method == "forkserver"
        factory = recipe.factory if recipe.start_method == "fork" else None
        with _starting:
            self.pipe, childs_end = socket.socketpair()
            descriptors.keep_from_children(self.pipe.fileno(), self.pipe.close)
            try:
                self._process = context.Process(
                    target=worker.main,
                    args=(childs_end, index, factory, recipe.preload),
                    name=f"{recipe.name}-{index}",
                    daemon=False,  # a daemon may have no children of its own, and engines do
                )
                self._process.start()
            except BaseException:
                self._close_pipe()
                raise
            finally:
                childs_end.close()
        self.pid: int = self._process.pid
        self._birth = guard.born(self.pid)
        guarding.watch_over(self.pid)
        self.pipe.setblocking(False)
        self._pidfd = self._open_pidfd()
        self.sentinel: int = self._process.sentinel if self._pidfd is None else self._pidfd

    def _open_pidfd(self) -> int | None:
        # multiprocess' own sentinel is a pipe that a grandchild may hold open; a pidfd speaks of the process alone.
        try:
            pidfd = os.pidfd_open(self.pid)
        except (AttributeError, OSError):
            return None
        descriptors.keep_from_children(pidfd)
        return pidfd

    @property
    def exitcode(self) -> int | None:
        """None while it runs; its exit status after, negative for the signal that ended it."""
        if self._released:
            return self._status
        code: int | None = self._process.exitcode
        return code

    @property
    def alive(self) -> bool:
        """Whether the process still runs; a stopped one does."""
        return not self.wait(0)

    def state(self) -> str:
        """What the process does, in a word or two: running, sleeping, stopped."""
        return guard.state(self.pid) if self.alive else "ended"

    def roots(self) -> list[int]:
        """Its number, to find its family by; empty when the number is another process's by now."""
        return [self.pid] if guard.is_still(self.pid, self._birth) else []

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the process to end. True when it has ended."""
        if self._released:
            return True
        poll = select.poll()
        poll.register(self.sentinel, select.POLLIN)
        return bool(poll.poll(max(0.0, timeout) * 1000))

    def terminate(self) -> None:
        """SIGTERM to the worker alone."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                if self._pidfd is None:
                    os.kill(self.pid, signal.SIGTERM)
                else:
                    signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the worker and to everything that it started."""
        if not self._released:
            guard.kill_families(self.roots())

    def release(self) -> int | None:
        """After the end: reap it and close what the parent holds of it. Returns the exit status, None if unknown."""
        if self._released:
            return self._status
        self._status = self._await_status()
        self._released = True
        self._close_pipe()
        if self._pidfd is not None:
            descriptors.forget(self._pidfd)
            os.close(self._pidfd)
        guarding.released(self.pid)
        if self._status is None:
            # multiprocess would take it to be running for ever; 255 is what it says itself of an unknown status.
            self._process._popen.returncode = 255  # noqa: SLF001
        self._process.close()
        return self._status

    def _await_status(self) -> int | None:
        """The exit status of a process that has ended; None when somebody else has reaped it and so taken it."""
        code: int | None = self._process.exitcode
        if code is None and self._forked_elsewhere:  # the fork server reaps it, and says so a moment later
            multiprocess.connection.wait([self._process.sentinel], _EXIT_STATUS_S)
            code = self._process.exitcode
        return code

    def _close_pipe(self) -> None:
        if (descriptor := self.pipe.fileno()) >= 0:
            descriptors.forget(descriptor)
            self.pipe.close()
