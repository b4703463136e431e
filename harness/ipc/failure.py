"""What went wrong on one worker, as data that any process can read.

An exception object is never sent between processes: rebuilding it runs its class's code in the receiver, which may
raise, may not exist there, or may replace the receiver's own error. What is sent instead is a plain tuple of strings
and numbers, taken from the exception with every hostile ``__str__``, ``__cause__`` or class name contained.
"""

from __future__ import annotations

import signal
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

Kind: TypeAlias = Literal["raised", "unpicklable", "died", "silent", "unsent", "undecodable", "closed"]
"""How a worker failed a call.

``raised``: the method raised; ``unpicklable``: its result cannot be sent; ``undecodable``: its result arrived but cannot
be rebuilt in the parent; ``died``: its process ended; ``silent``: no reply within the deadline; ``unsent``: it was not
asked, or had not begun to take the request when the deadline passed; ``closed``: the pool was closed meanwhile.
"""

_MAX_CAUSES = 32
_DEATH_NOTICE_S = 0.05
"""A death is stamped when the parent notices it, a raise where it happens: deaths sort as if noticed this much sooner."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One link of an exception's chain."""

    type_name: str
    message: str
    relation: Literal["cause", "context"]
    """``cause`` for ``raise … from``, ``context`` for an exception raised while another was handled."""


@dataclass(frozen=True, slots=True)
class Failure:
    """One worker's failure of one call."""

    worker: int
    """Index of the worker in its pool."""
    kind: Kind
    type_name: str
    """Qualified name of the exception's class; empty when no exception was raised."""
    message: str
    traceback: str
    """The remote traceback as Python prints it, chain included; empty when there is none."""
    causes: tuple[Cause, ...]
    at: float
    """``time.monotonic()`` of the failure: that clock is common to all processes of the machine."""
    method: str = ""
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
        """Sort key that puts the root cause first: when it happened; what the parent merely concluded comes last."""
        concluded = {"silent": 1e12, "unsent": 2e12, "closed": 2e12}
        return self.at + concluded.get(self.kind, 0.0) - (_DEATH_NOTICE_S if self.kind == "died" else 0.0)

    def with_others(self, others: Iterable[Failure]) -> Failure:
        """This failure, with others of the same worker that surface with it."""
        return replace(self, also=tuple(others))

    def died(self, at: float, exit_status: int | None) -> Failure:
        """This failure as a death at the monotonic time ``at``."""
        return replace(self, at=at, exit_status=exit_status)

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


def describe_exception(error: BaseException) -> tuple[str, str, str, tuple[tuple[str, str, str], ...], float]:
    """Take from an exception what :func:`failure_from` needs, as plain data, whatever the exception's class does.

    Returns:
        Type name, message, traceback text, chain as (type name, message, relation) and the time of the call.
    """
    at = time.monotonic()
    chain = []
    for link, relation in _chain(error):
        chain.append((_type_name(link), _message(link), relation))
    return _type_name(error), _message(error), _traceback(error), tuple(chain), at


def failure_from(
    worker: int, kind: Kind, description: tuple[Any, ...], *, method: str = "", posted: bool = False
) -> Failure:
    """Rebuild a failure from what :func:`describe_exception` took, on the receiving side."""
    type_name, message, text, chain, at = description
    causes = tuple(Cause(name, said, relation) for name, said, relation in chain)
    return Failure(worker, kind, type_name, message, text, causes, at, method=method, posted=posted)


def describe_exit(status: int | None) -> str:
    """An exit status in words: ``was killed by SIGKILL (signal 9)``, ``exited with status 3``."""
    if status is None:
        return "ended, with an exit status that could not be read"
    if status >= 0:
        return f"exited with status {status}" + (" without being asked" if status == 0 else "")
    try:
        name = signal.Signals(-status).name
    except ValueError:
        return f"was killed by signal {-status}"
    return f"was killed by {name} (signal {-status})"


def _chain(error: BaseException) -> list[tuple[BaseException, Literal["cause", "context"]]]:
    links: list[tuple[BaseException, Literal["cause", "context"]]] = []
    seen = {id(error)}
    current = error
    while len(links) < _MAX_CAUSES:
        # Through BaseException's own slots: a subclass may define properties of these names.
        cause = BaseException.__cause__.__get__(current)  # type: ignore[attr-defined]
        context = BaseException.__context__.__get__(current)  # type: ignore[attr-defined]
        suppressed = BaseException.__suppress_context__.__get__(current)  # type: ignore[attr-defined]
        following = cause if cause is not None else (None if suppressed else context)
        if following is None or id(following) in seen:
            break
        seen.add(id(following))
        links.append((following, "cause" if cause is not None else "context"))
        current = following
    return links


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
        frames = traceback.format_tb(BaseException.__traceback__.__get__(error))  # type: ignore[attr-defined]
        return _plain("Traceback (most recent call last):\n" + "".join(frames) + _type_name(error) + "\n")
