"""The child's side of the pipe: build the object, answer calls until told to stop.

Nothing that the object does ends the loop: whatever a method raises, ``SystemExit`` and ``KeyboardInterrupt`` included,
becomes a failure of that call. The result is encoded before the first byte of the reply is sent, so one that cannot
be encoded becomes a failure too.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any

from harness.ipc.envelope import Incoming, Kind, Message, Outgoing
from harness.ipc.failure import describe_exception
from harness.ipc.guard import kill_family
from harness.ipc.pickling import Parcel, decode, encode


def main(
    pipe: socket.socket,
    index: int,
    factory: Callable[[int], Any] | Parcel,
    preload: Sequence[str],
    hello_id: int,
) -> None:
    """Run in the child process until the parent says close or closes its end.

    Args:
        pipe: this worker's end; nobody else holds it.
        index: position of this worker in its pool.
        factory: the callable itself under fork, encoded under the other start methods.
        preload: modules to import first; one that is not installed is left out.
        hello_id: call id of the first reply, which says that the object has been built, or why not.
    """
    _detach()
    _Worker(pipe, index).run(factory, preload, hello_id)


def _detach() -> None:
    """Lead a session of our own, so that our descendants can be found and a Ctrl-C reaches the owner only."""
    with contextlib.suppress(PermissionError):  # already a leader
        os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


class _Worker:
    """The loop and what it remembers between two requests."""

    def __init__(self, pipe: socket.socket, index: int) -> None:
        self._pipe = pipe
        self._index = index
        self._incoming = Incoming()
        self._subject: Any = None
        self._owed: list[tuple[str, tuple[Any, ...]]] = []
        """Posts that failed: (method, description). The next call reports them."""
        self._interruptible = False
        signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, *_: object) -> None:
        """SIGINT interrupts a call; between calls there is nothing to interrupt."""
        if self._interruptible:
            raise KeyboardInterrupt

    def run(self, factory: Callable[[int], Any] | Parcel, preload: Sequence[str], hello_id: int) -> None:
        try:
            if not self._build(factory, preload, hello_id):
                return
            while self._serve_one():
                pass
        except (EOFError, BrokenPipeError, ConnectionResetError):
            # The parent is gone, and did not say close: end what we started, which nobody else may know of.
            kill_family(os.getpid(), root_too=False)

    def _build(self, factory: Callable[[int], Any] | Parcel, preload: Sequence[str], hello_id: int) -> bool:
        try:
            self._interruptible = True
            for module in preload:
                with contextlib.suppress(ImportError):
                    importlib.import_module(module)
            if isinstance(factory, Parcel):
                factory = decode(b"".join(factory.chunks), factory.buffers, by_dill=factory.by_dill)
            self._subject = factory(self._index)
        except BaseException as error:  # noqa: BLE001 - the parent decides what a failed start means
            self._fail(hello_id, "raised", "start", error)
            return False
        finally:
            self._interruptible = False
        self._send(Kind.RESULT, hello_id, encode(None))
        return True

    def _serve_one(self) -> bool:
        message = self._incoming.receive(self._pipe)
        if message is None:
            return True
        if message.kind is Kind.CLOSE:
            return False
        if message.kind is Kind.POST:
            self._run_post(message)
        elif self._owed:
            self._report_posts(message.call_id)
        else:
            self._run_call(message)
        return True

    def _run_call(self, message: Message) -> None:
        method = ""
        stage = "raised"
        try:
            self._interruptible = True
            method, args, kwargs = message.decode()
            result = self._method(method)(*args, **kwargs)
            stage = "unpicklable"
            parcel = encode(result)
        except BaseException as error:  # noqa: BLE001 - a call may raise anything, and the worker lives on
            self._interruptible = False
            self._fail(message.call_id, stage, method, error)
        else:
            self._interruptible = False
            self._send(Kind.RESULT, message.call_id, parcel)

    def _run_post(self, message: Message) -> None:
        method = ""
        try:
            self._interruptible = True
            method, args, kwargs = message.decode()
            self._method(method)(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - surfaces on the next call
            self._interruptible = False
            self._owed.append((method, describe_exception(error)))
        finally:
            self._interruptible = False

    def _report_posts(self, call_id: int) -> None:
        owed, self._owed = self._owed, []
        described = [("raised", method, True, description) for method, description in owed]
        self._send(Kind.FAILURE, call_id, encode(described))

    def _method(self, name: str) -> Callable[..., Any]:
        try:
            found: Callable[..., Any] = getattr(self._subject, name)
        except AttributeError:
            names = [one for one in dir(self._subject) if not one.startswith("_")]
            offered = ", ".join(names[:20]) or "no public method"
            kind = type(self._subject).__name__
            raise AttributeError(
                f"the workers' object, a {kind}, has no method {name!r}; it has {offered}"
            ) from None
        return found

    def _fail(self, call_id: int, kind: str, method: str, error: BaseException) -> None:
        self._send(Kind.FAILURE, call_id, encode([(kind, method, False, describe_exception(error))]))

    def _send(self, kind: Kind, call_id: int, parcel: Parcel) -> None:
        Outgoing(kind, call_id, parcel).send(self._pipe)
