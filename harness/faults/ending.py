"""Ends of a process: by signal, by exit, by a fault in native code, with a reply half-written; and stops."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

from harness.faults.fault import Effect, fault

if TYPE_CHECKING:
    from collections.abc import Iterable

EXIT_STATUS = 3
HEIR_S = 3.0
"""How long the heir of a process that has exited lives."""
LAST_S = 0.2
"""How long after the call such a process exits."""
HALF_BYTES = 1024 * 1024
"""Size of the reply of which one half is written."""
_NOTABLE_BYTES = 4096


@fault("kill", Effect.DIES, -signal.SIGKILL)
def kill() -> None:
    """SIGKILL, as the out-of-memory killer sends it."""
    os.kill(os.getpid(), signal.SIGKILL)


@fault("terminate", Effect.DIES, -signal.SIGTERM)
def terminate() -> None:
    """SIGTERM, as a job scheduler sends it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    signal.pause()


@fault("abort", Effect.DIES, -signal.SIGABRT)
def abort() -> None:
    """``abort()``, as failed assertions of native code do."""
    _leave_no_trace()
    os.abort()


@fault("segfault", Effect.DIES, -signal.SIGSEGV)
def segfault() -> None:
    """A segmentation fault."""
    _leave_no_trace()
    ctypes.string_at(0)


@fault("exit-zero", Effect.DIES, 0)
def exit_zero() -> None:
    """``os._exit(0)``: an end that looks like success."""
    os._exit(0)


@fault("exit-status", Effect.DIES, EXIT_STATUS)
def exit_status() -> None:
    """``os._exit(3)``."""
    os._exit(EXIT_STATUS)


@fault("exit-leaving-child", Effect.DIES, 0)
def exit_leaving_child() -> None:
    """``os._exit(0)`` while a forked child, which has inherited every descriptor, lives on for a few seconds.

    The end comes a moment after the call, so that no other worker's reply wakes the parent at the right time.
    """
    time.sleep(HEIR_S if os.fork() == 0 else LAST_S)
    os._exit(0)


@fault("half-written", Effect.DIES, -signal.SIGKILL)
def half_written() -> bytes:
    """The process is killed when it has written half of its reply."""
    for module in ("multiprocessing.connection", "multiprocess.connection"):
        if module in sys.modules:
            sys.modules[module].Connection._send = _send_half  # noqa: SLF001
    socket.socket.send = _socket_send_half  # type: ignore[method-assign,assignment]
    socket.socket.sendmsg = _socket_sendmsg_half  # type: ignore[method-assign,assignment]
    return bytes(HALF_BYTES)


@fault("stop", Effect.HANGS)
def stop() -> None:
    """SIGSTOP: the process is there, and does nothing."""
    os.kill(os.getpid(), signal.SIGSTOP)


@fault("parent-death", Effect.ORPHANS)
def parent_death() -> None:
    """SIGKILL to the process that owns this one."""
    os.kill(owner(), signal.SIGKILL)


def owner() -> int:
    """Process id of whoever started this process through multiprocessing, a fork server left out; else its parent's."""
    for package in ("multiprocess", "multiprocessing"):
        parent = package in sys.modules and sys.modules[package].parent_process()
        if parent:
            return int(parent.pid)
    return os.getppid()


@fault("hold-interpreter", Effect.HANGS)
def hold_interpreter() -> None:
    """Native code that never returns and never lets another Python thread run."""
    ctypes.PyDLL(None).pause()


def _leave_no_trace() -> None:
    """No core file, and no dump on standard error: this end is meant."""
    import faulthandler
    import resource

    faulthandler.disable()

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _send_half(connection: Any, buffer: bytes, write: Any = None) -> None:
    write = write or os.write
    view = memoryview(buffer)
    if len(view) >= _NOTABLE_BYTES:
        write(connection.fileno(), view[: len(view) // 2])
        kill()
    while view:
        view = view[write(connection.fileno(), view) :]


def _socket_send_half(pipe: socket.socket, data: bytes, *_: Any) -> int:
    return _socket_sendmsg_half(pipe, [data])


def _socket_sendmsg_half(pipe: socket.socket, buffers: Iterable[bytes], *_: Any) -> int:
    data = b"".join(buffers)
    if len(data) < _NOTABLE_BYTES:
        return os.write(pipe.fileno(), data)
    os.write(pipe.fileno(), data[: len(data) // 2])
    kill()
    return 0
