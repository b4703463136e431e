"""The owner's side of the guard: starts it with the first worker, tells it whom to watch over."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

from multiprocess import parent_process, process, util

from harness.ipc import guard


class _Guard:
    """The guard process of this process, started when first needed. A forked child gets one of its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._orders: int | None = None
        self._pid: int | None = None
        self._forked = False
        self._folder: str | None = None

    def order(self, text: str) -> None:
        with self._lock:
            if self._orders is None:
                self._start()
            try:
                self._write(text)
            except BrokenPipeError:  # somebody killed the guard: a new one watches over those who come
                self._end()
                self._start()
                self._write(text)

    def clear_temporary_folder(self) -> None:
        """Let the guard remove multiprocess' folder of sockets, if it is this process that made it."""
        if self._folder is not None:
            return
        inherited = self._forked or parent_process() is not None
        if inherited and "tempdir" in process.current_process()._config:  # noqa: SLF001 - no public way to ask
            return
        self._folder = util.get_temp_dir()
        self.order(f"d{self._folder}")

    def forget_in_child(self) -> None:
        self._lock = threading.Lock()
        self._pid = self._folder = None
        self._forked = True
        self._end()

    def _end(self) -> None:
        if self._orders is not None:
            with contextlib.suppress(OSError):
                os.close(self._orders)
            self._orders = None
        if self._pid is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._pid, 0)
            self._pid = None

    def _write(self, text: str) -> None:
        assert self._orders is not None
        os.write(self._orders, f"{text}\n".encode())

    def _start(self) -> None:
        reading, self._orders = os.pipe()
        try:
            command = [sys.executable, "-I", "-S", guard.__file__, str(reading), str(os.getpid())]
            self._pid = util.spawnv_passfds(os.fsencode(sys.executable), command, [reading])
        finally:
            os.close(reading)


_guard = _Guard()
os.register_at_fork(after_in_child=_guard.forget_in_child)


def watch_over(pid: int) -> None:
    """Kill ``pid`` and its family when this process ends without having said :func:`released`."""
    _guard.order(f"+{pid}")


def released(pid: int) -> None:
    """``pid`` has ended: its number may soon be another process's."""
    _guard.order(f"-{pid}")


def clear_temporary_folder() -> None:
    """Have multiprocess' folder of sockets removed when this process is killed."""
    _guard.clear_temporary_folder()
