"""The owner's side of the guard: starts it with the first worker, tells it whom to watch over."""

from __future__ import annotations

import contextlib
import os
import threading

from multiprocess import parent_process, process, spawn, util

from harness.ipc import descriptors, guard


class _Guard:
    """The guard process of this process, started when first needed. A forked child gets one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: int | None = None
        self._pid: int | None = None
        self._folder: str | None = None
        self._forked = False
        self._watched: dict[int, str | None] = {}

    def watch_over(self, pid: int) -> None:
        with self._lock:
            self._watched[pid] = guard.born(pid)
            self._order(_registering(pid, self._watched[pid]))

    def released(self, pid: int) -> None:
        with self._lock:
            self._watched.pop(pid, None)
            self._order(f"-{pid}")

    def clear_temporary_folder(self) -> None:
        with self._lock:
            if self._folder is not None:
                return
            inherited = self._forked or parent_process() is not None
            if inherited and "tempdir" in process.current_process()._config:  # noqa: SLF001 - no public way to ask
                return
            self._folder = util.get_temp_dir()
            self._order(f"d{self._folder}")

    def forget_in_child(self) -> None:
        """The parent's guard is not ours; its pipe has been closed as a descriptor of the parent's."""
        self.__init__()  # type: ignore[misc]
        self._forked = True

    def _order(self, text: str) -> None:
        if self._orders is not None:
            try:
                os.write(self._orders, os.fsencode(f"{text}\n"))
            except BrokenPipeError:  # somebody killed the guard: a new one takes over
                self._end()
            else:
                return
        self._start()

    def _start(self) -> None:
        """Start a guard and tell it everything that the last one knew."""
        reading, self._orders = os.pipe()
        descriptors.keep_from_children(self._orders)
        try:
            python = os.fsdecode(spawn.get_executable())
            command = [python, "-I", "-S", guard.__file__, str(reading), str(os.getpid())]
            self._pid = util.spawnv_passfds(os.fsencode(python), command, [reading])
        finally:
            os.close(reading)
        orders = [_registering(pid, birth) for pid, birth in self._watched.items()]
        if self._folder is not None:
            orders.append(f"d{self._folder}")
        os.write(self._orders, os.fsencode("".join(f"{order}\n" for order in orders)))

    def _end(self) -> None:
        if self._orders is not None:
            descriptors.forget(self._orders)
            os.close(self._orders)
            self._orders = None
        if self._pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = None


def _registering(pid: int, birth: str | None) -> str:
    return f"+{pid} {birth or ''}"


_guard = _Guard()
os.register_at_fork(after_in_child=_guard.forget_in_child)


def watch_over(pid: int) -> None:
    """Kill ``pid`` and its family when this process ends without having said :func:`released`."""
    _guard.watch_over(pid)


def released(pid: int) -> None:
    """``pid`` has ended: its number may soon be another process's."""
    _guard.released(pid)


def clear_temporary_folder() -> None:
    """Have multiprocess' folder of sockets removed when this process is killed, if it is this process that made it."""
    _guard.clear_temporary_folder()
