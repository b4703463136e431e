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
from typing import TYPE_CHECKING, Any

from harness.ipc import descriptors
from harness.ipc.envelope import NOTHING, Incoming, Kind, Outgoing
from harness.ipc.failure import describe_exception
from harness.ipc.guard import kill_families
from harness.ipc.pickling import encode

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from harness.ipc.envelope import Message
    from harness.ipc.failure import Description, FailureKind
    from harness.ipc.pickling import Parcel


_REPORTS_KEPT = 64
"""Reports of failed posts that are kept in case nobody read them; more calls than these are not in flight."""


def main(
    pipe: socket.socket,
    index: int,
    factory: Callable[[int], Any] | None,
    preload: Sequence[str],
) -> None:
    """Run in the child process until the parent says close or closes its end.

    Args:
        pipe: this worker's end; nobody else holds it.
        index: position of this worker in its pool.
        factory: builds the object whose methods are called; None when the first message brings it.
        preload: modules to import first; one that is not installed is left out.
    """
    with contextlib.suppress(PermissionError):  # already a leader
        os.setsid()  # so that our descendants can be found, and a Ctrl-C at the terminal reaches the owner only
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    pipe.setblocking(True)
    descriptors.keep_from_children(pipe.fileno(), pipe.close)
    _Worker(pipe, index).run(factory, preload)


class _Worker:
    """The loop, and what it remembers between two requests."""

    def __init__(self, pipe: socket.socket, index: int) -> None:
        self._pipe = pipe
        self._index = index
        self._pid = os.getpid()
        self._incoming = Incoming()
        self._subject: Any = None
        self._owed: list[tuple[str, Description]] = []
        """Posts that failed, with the method's name. The next call reports them."""
        self._reported: dict[int, list[tuple[str, Description]]] = {}
        """What has been reported, by the call that did; given up, that call has told nobody."""
        self._invoked = ""
        self._interruptible = False
        signal.signal(signal.SIGINT, self._interrupted)

    def _interrupted(self, *_: object) -> None:
        """SIGINT interrupts a method; between two there is nothing to interrupt."""
        if self._interruptible:
            self._interruptible = False
            raise KeyboardInterrupt

    def run(self, factory: Callable[[int], Any] | None, preload: Sequence[str]) -> None:
        try:
            while (message := self._incoming.receive(self._pipe)) is not None:
                build = message.kind is Kind.BUILD
                if not (self._build(message, factory, preload) if build else self._serve(message)):
                    return
        except (EOFError, OSError):
            if os.getpid() != self._pid:
                os._exit(
                    1
                )  # forked by a method that came back: the worker itself goes on, in its own process
            # The parent is gone and did not say close: end what we started, of which nobody else may know.
            kill_families([self._pid], roots_too=False)

    def _build(self, message: Message, factory: Callable[[int], Any] | None, preload: Sequence[str]) -> bool:
        def build() -> None:
            for module in preload:
                with contextlib.suppress(ImportError):
                    importlib.import_module(module)
            given = message.decode() if factory is None else factory
            self._subject = given(self._index)

        _, raised = self._attempt(build)
        if raised is None:
            self._send(Kind.RESULT, message.call_id, NOTHING)
        else:
            self._fail(message.call_id, "raised", raised)
        return raised is None

    def _serve(self, message: Message) -> bool:
        if message.kind is Kind.POST:
            self._run_post(message)
        elif message.kind is Kind.GIVEN_UP:
            self._owed[:0] = self._reported.pop(message.call_id, [])
        elif self._owed:
            self._report_posts(message.call_id)
        elif message.kind is Kind.CLOSE:
            self._send(Kind.RESULT, message.call_id, NOTHING)
        else:
            self._run_call(message)
        return message.kind is not Kind.CLOSE

    def _run_call(self, message: Message) -> None:
        result, raised = self._attempt(self._invoke, message)
        if raised is not None:
            self._fail(message.call_id, "raised", raised)
            return
        parcel, raised = self._attempt(encode, result)
        if raised is not None:
            self._fail(message.call_id, "unpicklable", raised)
            return
        self._send(Kind.RESULT, message.call_id, parcel)

    def _run_post(self, message: Message) -> None:
        _, raised = self._attempt(self._invoke, message)
        if raised is not None:
            self._owed.append((self._invoked, raised))

    def _report_posts(self, call_id: int) -> None:
        owed, self._owed = self._owed, []
        self._reported[call_id] = owed
        while len(self._reported) > _REPORTS_KEPT:
            del self._reported[next(iter(self._reported))]
        self._send(Kind.POSTED, call_id, encode(owed))

    def _attempt(self, act: Callable[..., Any], *args: Any) -> tuple[Any, Description | None]:
        """Run foreign code: what it returned, and what it raised, if it did."""
        outcome: tuple[Any, Description | None]
        try:
            self._interruptible = True
            try:
                outcome = act(*args), None
            except BaseException as error:  # noqa: BLE001 - it may raise anything, and the worker lives on
                outcome = None, describe_exception(error)
            self._interruptible = False
        except KeyboardInterrupt as error:  # came while the other was being described
            outcome = None, describe_exception(error)
        return outcome

    def _invoke(self, message: Message) -> Any:
        self._invoked = "a request that could not be decoded"
        name, args, kwargs = message.decode()
        self._invoked = name
        try:
            method = getattr(self._subject, name)
        except AttributeError as error:
            raise AttributeError(self._offer(name)) from error
        return method(*args, **kwargs)

    def _offer(self, name: str) -> str:
        offered = ", ".join([one for one in dir(self._subject) if not one.startswith("_")][:20])
        kind = type(self._subject).__name__
        return f"the workers' object ({kind}) has no method {name!r}; it has {offered or 'no public method'}"

    def _fail(self, call_id: int, kind: FailureKind, raised: Description) -> None:
        self._send(Kind.FAILURE, call_id, encode((kind, raised)))

    def _send(self, kind: Kind, call_id: int, parcel: Parcel) -> None:
        Outgoing(kind, call_id, parcel).send(self._pipe)
