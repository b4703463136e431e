"""Exceptions, from ordinary ones to those that fight back when somebody tries to print, copy or send them."""

from __future__ import annotations

import sys
from typing import NoReturn

from harness.faults.fault import Effect, fault

LONG_MESSAGE_BYTES = 300_000
"""More than a pipe holds: a writer that is not read blocks on it."""


class ServerBusy(Exception):
    """Its constructor wants more than ``args`` holds, so that the usual way to rebuild an exception raises."""

    def __init__(self, host: str, *, port: int) -> None:
        super().__init__(f"{host}:{port} is busy")
        self.host = host
        self.port = port


class RefusesToBeSent(Exception):
    """Pickling it raises."""

    def __reduce__(self) -> NoReturn:
        raise RuntimeError("this exception refuses to be pickled")


class ExitsWhenRebuilt(Exception):
    """Pickling it works; rebuilding it ends whoever does."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return sys.exit, ("whoever rebuilds this exception exits",)


class HoldsAGenerator(Exception):
    """Ordinary, but for an attribute that no pickler can write."""

    def __init__(self) -> None:
        super().__init__("a generator is among the attributes")
        self.rest = (number for number in range(3))


class UnreadableMessage(Exception):
    """Its ``__str__`` raises."""

    def __str__(self) -> NoReturn:
        raise RuntimeError("this exception has no message")


class UnreadableAltogether(Exception):
    """Its ``__str__`` and its ``__repr__`` raise, and not even an Exception."""

    def __str__(self) -> NoReturn:
        raise SystemExit("from __str__")

    def __repr__(self) -> NoReturn:
        raise KeyboardInterrupt("from __repr__")


class Aborted(BaseException):
    """A stranger's exception that is no ``Exception``."""


@fault("raise", Effect.FAILS)
def raise_plainly() -> NoReturn:
    """An ordinary ``ValueError``."""
    raise ValueError("the prompt is longer than the model's context")


@fault("raise-chained", Effect.FAILS)
def raise_chained() -> NoReturn:
    """An exception with a cause, which has a context."""
    try:
        try:
            raise KeyError("weights")
        except KeyError:
            raise OSError("could not read the shard")  # noqa: B904 - the context is wanted
    except OSError as error:
        raise RuntimeError("the engine is not ready") from error


@fault("raise-group", Effect.FAILS)
def raise_group() -> NoReturn:
    """An exception group."""
    raise ExceptionGroup("two requests failed", [ValueError("first"), TimeoutError("second")])


@fault("raise-long", Effect.FAILS)
def raise_long() -> NoReturn:
    """An exception whose message is longer than a pipe holds."""
    raise AssertionError("x" * LONG_MESSAGE_BYTES)


@fault("raise-base", Effect.FAILS)
def raise_base() -> NoReturn:
    """A ``BaseException`` that is no ``Exception``."""
    raise Aborted("not an Exception")


@fault("system-exit", Effect.FAILS)
def system_exit() -> NoReturn:
    """``sys.exit(0)`` inside the call."""
    sys.exit(0)


@fault("keyboard-interrupt", Effect.FAILS)
def keyboard_interrupt() -> NoReturn:
    """``KeyboardInterrupt`` inside the call."""
    raise KeyboardInterrupt


@fault("generator-exit", Effect.FAILS)
def generator_exit() -> NoReturn:
    """``GeneratorExit`` inside the call."""
    raise GeneratorExit


@fault("hostile-init", Effect.FAILS)
def hostile_init() -> NoReturn:
    """An exception that cannot be rebuilt from its ``args``."""
    raise ServerBusy("localhost", port=8000)


@fault("hostile-reduce", Effect.FAILS)
def hostile_reduce() -> NoReturn:
    """An exception whose ``__reduce__`` raises."""
    raise RefusesToBeSent("no")


@fault("hostile-rebuild", Effect.FAILS)
def hostile_rebuild() -> NoReturn:
    """An exception that ends the process that rebuilds it."""
    raise ExitsWhenRebuilt("careful")


@fault("unpicklable-exception", Effect.FAILS)
def unpicklable_exception() -> NoReturn:
    """An exception that holds something that cannot be pickled."""
    raise HoldsAGenerator


@fault("hostile-str", Effect.FAILS)
def hostile_str() -> NoReturn:
    """An exception whose ``__str__`` raises."""
    raise UnreadableMessage


@fault("hostile-repr", Effect.FAILS)
def hostile_repr() -> NoReturn:
    """An exception whose ``__str__`` raises ``SystemExit`` and whose ``__repr__`` raises ``KeyboardInterrupt``."""
    raise UnreadableAltogether
