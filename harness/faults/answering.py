"""Results that are right and awkward, or that cannot be sent or rebuilt."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NoReturn

from harness.faults.fault import Effect, fault

if TYPE_CHECKING:
    from collections.abc import Iterator

HUGE_BYTES = 64 * 1024 * 1024
SLOW_S = 0.2
FOREVER_S = 3600.0


class RefusesToBePickled:
    """A value whose pickling raises ``SystemExit``."""

    def __reduce__(self) -> NoReturn:
        raise SystemExit("this value refuses to be pickled")


class RefusesToBeRebuilt:
    """A value that is sent without trouble and cannot be rebuilt."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return int, ("not a number",)


@fault("unpicklable-result", Effect.FAILS)
def unpicklable_result() -> Iterator[int]:
    """A result that no pickler can write: a generator."""
    return (number for number in range(3))


@fault("result-exits", Effect.FAILS)
def result_exits() -> RefusesToBePickled:
    """A result whose pickling raises ``SystemExit``."""
    return RefusesToBePickled()


@fault("undecodable-result", Effect.FAILS)
def undecodable_result() -> RefusesToBeRebuilt:
    """A result that arrives and cannot be rebuilt."""
    return RefusesToBeRebuilt()


@fault("huge", Effect.ANSWERS)
def huge() -> bytes:
    """A result of 64 MiB."""
    return bytes(HUGE_BYTES)


@fault("slow", Effect.ANSWERS)
def slow() -> str:
    """A result that takes its time."""
    time.sleep(SLOW_S)
    return "slow"


@fault("fork-and-return", Effect.ANSWERS)
def fork_and_return() -> str:
    """A call that forks and comes back twice, once in each process."""
    os.fork()
    return "forked"


@fault("hang", Effect.HANGS)
def hang() -> None:
    """A call that does not return."""
    time.sleep(FOREVER_S)
