"""What a fault is: a name, a sentence, what it does to the process that it happens in, and the act itself."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

Act = TypeVar("Act", bound="Callable[[], Any]")

_by_name: dict[str, Fault] = {}


class Effect(StrEnum):
    """What is true of the process afterwards, and so what whoever called into it must be told."""

    FAILS = "fails"
    """The call fails; the process lives and can serve the next one."""
    DIES = "dies"
    """The process ends."""
    HANGS = "hangs"
    """The call never returns; the process is still there."""
    ANSWERS = "answers"
    """The call returns a right but awkward value."""
    ORPHANS = "orphans"
    """The process that owns it ends, and it must not stay."""


@dataclass(frozen=True)
class Fault:
    """One way to go wrong.

    Attributes:
        name: permanent, such as ``kill`` or ``hostile-str``.
        sentence: what happens, for a person.
        effect: see :class:`Effect`.
        act: does it, in the process that calls it; what it returns, if it returns, is the call's result.
        status: exit status that a deadly fault leaves, negative for a signal as in ``Popen.returncode``.
    """

    name: str
    sentence: str
    effect: Effect
    act: Callable[[], Any]
    status: int | None = None


def fault(name: str, effect: Effect, status: int | None = None) -> Callable[[Act], Act]:
    """Declare the decorated function to be a fault; its docstring is the sentence."""

    def declare(act: Act) -> Act:
        _by_name[name] = Fault(name, (act.__doc__ or "").strip(), effect, act, status)
        return act

    return declare


def named(name: str) -> Fault:
    """The fault of that name.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    try:
        return _by_name[name]
    except KeyError:
        near = difflib.get_close_matches(name, _by_name, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"there is no fault {name!r}: expected one of {', '.join(_by_name)}{hint}") from None


def with_effect(*effects: Effect) -> list[Fault]:
    """The faults with any of these effects, in the order of their declaration; all when none is given."""
    return [one for one in _by_name.values() if not effects or one.effect in effects]
