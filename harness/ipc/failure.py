"""What went wrong on one worker, as data that any process can read.

An exception object is never sent between processes: rebuilding it runs its class's code in the receiver, which may
raise, may not exist there, or may replace the receiver's own error. What is sent instead is a plain tuple of strings
and numbers, taken from the exception with every hostile ``__str__``, ``__cause__`` or class name contained.
"""

from __future__ import annotations

import signal
import time
import traceback
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

FailureKind: TypeAlias = Literal["raised", "unpicklable", "died", "silent", "unsent", "undecodable", "closed"]
"""How a worker failed a call.

``raised``: the method raised; ``unpicklable``: its result cannot be sent; ``undecodable``: its result arrived but
cannot be rebuilt in the parent; ``died``: its process ended; ``silent``: no reply within the deadline; ``unsent``: it
was not asked, or did not begin to read the request in time; ``closed``: the pool was closed meanwhile.
"""

Description: TypeAlias = tuple[str, str, str, tuple[tuple[str, str, str], ...], float]
"""An exception as it crosses the pipe: type name, message, traceback, chain of (type name, message, relation), time."""

_MAX_CAUSES = 32
_DEATH_NOTICE_S = 0.05
"""A death is stamped where it is noticed, a raise where it happens: deaths sort as if noticed this much sooner."""
_CHAIN_SLOTS = ("__cause__", "__context__", "__suppress_context__")
_CONCLUDED = {"silent": 1e12, "unsent": 2e12, "closed": 2e12}
"""Kinds that the parent concludes from something else sort behind everything that happened."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One link of an exception's chain."""

    type_name: str
    message: str
    relation: str
    """``cause`` for ``raise … from``, ``context`` for an exception raised while another was handled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One worker's failure of one call."""

    worker: int
    """Index of the worker in its pool."""
    kind: FailureKind
    method: str
    """What was called; ``start`` for the building of the worker's object."""
    message: str
    """The exception's own message, or a sentence on what happened to the worker."""
    type_name: str = ""
    """Qualified name of the exception's class; empty when no exception was raised."""
    traceback: str = ""
    """The remote traceback as Python prints it, chain included; empty when there is none."""
    causes: tuple[Cause, ...] = ()
    """The chain of the exception, nearest first."""
    at: float = field(default_factory=time.monotonic)
    """``time.monotonic()`` of the failure: that clock is common to all processes of the machine."""
    posted: bool = False
    """True when the failed request was a post that came before the call that reports it."""
    exit_status: int | None = None
    """Exit status of a worker that died, negative for a signal as in ``Process.exitcode``; None if it lives."""
    also: tuple[Failure, ...] = ()
    """Further failures of the same worker that surface with this one: later posts that failed too."""

    @property
    def signal(self) -> int | None:
        """The signal that ended the worker, or None."""
        return -self.exit_status if self.exit_status is not None and self.exit_status < 0 else None

    @property
    def order(self) -> float:
        """Sort key that puts the root cause first."""
        return self.at + _CONCLUDED.get(self.kind, 0.0) - (_DEATH_NOTICE_S if self.kind == "died" else 0.0)

    def headline(self) -> str:
        """The failure in one sentence, without its traceback."""
        where = f"worker {self.worker}"
        if self.kind in {"raised", "unpicklable", "undecodable"}:
            request = f"post of {self.method!r}" if self.posted else f"{self.method!r}"
            what = {
                "raised": f"{request} raised {self.type_name}",
                "unpicklable": f"the result of {request} cannot be sent ({self.type_name})",
                "undecodable": f"the result of {request} arrived but cannot be rebuilt here ({self.type_name})",
            }[self.kind]
            return f"{where}: {what}: {self.message}" if self.message else f"{where}: {what}"
        return f"{where}: {self.message}"


def describe_exception(error: BaseException) -> Description:
    """Take from an exception what can be sent: plain data, whatever the exception's class does."""
    at = time.monotonic()
    chain = tuple((_type_name(link), _message(link), relation) for link, relation in _chain(error))
    return _type_name(error), _message(error), _traceback(error), chain, at


def failure_from(
    description: Description, *, worker: int, kind: FailureKind, method: str, posted: bool = False
) -> Failure:
    """The failure that a description tells of, on the side that received it."""
    type_name, message, text, chain, at = description
    return Failure(
        worker=worker,
        kind=kind,
        method=method,
        message=message,
        type_name=type_name,
        traceback=text,
        causes=tuple(Cause(*link) for link in chain),
        at=at,
        posted=posted,
    )


def failed_posts(worker: int, told: Iterable[tuple[str, Description]]) -> Failure:
    """The failures of a worker's earlier posts (method and description of each) as one failure of a later call."""
    first, *others = [
        failure_from(description, worker=worker, kind="raised", method=method, posted=True)
        for method, description in told
    ]
    return replace(first, also=tuple(others))


def describe_exit(status: int | None) -> str:
    """An exit status in words: ``was killed by SIGKILL (signal 9)``, ``exited with status 3``."""
    if status is None:
        return "ended; its exit status is unknown, because another part of this program has reaped it"
    if status >= 0:
        return f"exited with status {status}" + (" without being asked" if status == 0 else "")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        return f"was killed by signal {-status}"
    return f"was killed by {name} (signal {-status})"


def _chain(error: BaseException) -> list[tuple[BaseException, str]]:
    links: list[tuple[BaseException, str]] = []
    seen = {id(error)}
    current = error
    while len(links) < _MAX_CAUSES:
        # Through BaseException's own slots: a subclass may define properties of these names.
        cause, context, suppressed = (_slot(current, name) for name in _CHAIN_SLOTS)
        following = cause if cause is not None else (None if suppressed else context)
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        links.append((following, "cause" if cause is not None else "context"))
        current = following
    return links


def _slot(error: BaseException, name: str) -> Any:
    return BaseException.__dict__[name].__get__(error)


def _plain(text: str) -> str:
    """An exact ``str`` that any codec can write, from a ``str`` that may be a subclass or hold lone surrogates."""
    return str.encode(text, "utf-8", "backslashreplace").decode("utf-8")


def _type_name(error: BaseException) -> str:
    kind = type(error)
    try:
        module, name = kind.__module__, kind.__qualname__
        return _plain(name if module == "builtins" else f"{module}.{name}")
    except BaseException:  # noqa: BLE001 - a metaclass may raise anything
        return "<exception whose class has no readable name>"


def _message(error: BaseException) -> str:
    try:
        return _plain(str(error))
    except BaseException as problem:  # noqa: BLE001 - __str__ is the user's code
        first = type(problem).__name__
    try:
        return _plain(repr(error)) + f" (its __str__ raised {first})"
    except BaseException as problem:  # noqa: BLE001 - so is __repr__
        return f"<no message: its __str__ raised {first} and its __repr__ raised {type(problem).__name__}>"


def _traceback(error: BaseException) -> str:
    try:
        return _plain("".join(traceback.format_exception(error)))
    except BaseException:  # noqa: BLE001 - formatting reads the user's attributes
        frames = traceback.format_tb(_slot(error, "__traceback__"))
        return _plain("Traceback (most recent call last):\n" + "".join(frames) + _type_name(error) + "\n")
