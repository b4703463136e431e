"""Arguments of the command line, checked at the door: a mistake is one sentence before any work begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


def whole_numbers(option: str, text: str, what: str) -> tuple[int, ...]:
    """Numbers separated by commas, each at least 1.

    Args:
        option: to name in an error.
        text: as given; empty for none.
        what: one of them in words, such as ``world size``.

    Raises:
        UsageError: something else was given.
    """
    try:
        numbers = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{option} {text!r}: expected {what}s such as 1,2") from None
    if any(number < 1 for number in numbers):
        raise UsageError(f"{option} {text!r}: a {what} is at least 1")
    return numbers


def writable(place: Path | None) -> None:
    """Complain before the work, not after it.

    Raises:
        UsageError: the folder of a file to write is not there.
    """
    if place is not None and not place.absolute().parent.is_dir():
        raise UsageError(f"cannot write {place}: there is no folder {place.absolute().parent}")
