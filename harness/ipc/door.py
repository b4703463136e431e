"""Bad input is turned away here, before anything is started or sent, with a sentence on what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.ipc.pickling import Parcel, encode

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.ipc.process import StartMethod

START_METHODS: tuple[StartMethod, ...] = ("spawn", "forkserver", "fork")


def require_startable(factory: object, size: object, start_method: object) -> None:
    """Refuse what no pool can be made from."""
    if not callable(factory):
        raise UsageError(f"factory must be callable as factory(index), and {factory!r} is not callable")
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise UsageError(f"a pool needs a whole number of workers, at least 1, not {size!r}")
    if start_method not in START_METHODS:
        raise UsageError(f"start_method must be one of {', '.join(START_METHODS)}, not {start_method!r}")


def require_chunks(chunks: Any, size: int) -> None:
    """Refuse what is not one tuple of arguments for each worker."""
    if len(chunks) != size or not all(isinstance(chunk, tuple) for chunk in chunks):
        raise UsageError(f"scatter needs one tuple of arguments for each of the {size} workers")


def require_index(index: object, size: int) -> None:
    """Refuse what is no worker's index."""
    if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < size:
        raise UsageError(f"a worker's index is a whole number from 0 to {size - 1}, not {index!r}")


def seconds(value: object, what: str) -> float:
    """``value`` as a deadline in seconds; refuse what is not a positive number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
        raise UsageError(f"{what} must be a positive number of seconds, not {value!r}")
    return float(value)


def encode_factory(factory: Callable[[int], Any], start_method: StartMethod) -> Parcel:
    """The factory, ready to send; refuse what cannot be. Under fork the child has it already: then it is nothing."""
    try:
        return encode(None if start_method == "fork" else factory)
    except Exception as error:
        raise UsageError(
            f"the factory cannot be sent to a worker under {start_method} ({type(error).__name__}: {error});"
            " let it refer to nothing that lives in this process only"
        ) from error


def encode_request(method: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Parcel:
    """A call's name and arguments, ready to send; refuse what cannot be sent."""
    if not isinstance(method, str):
        raise UsageError(f"a call needs the name of a method, not {method!r}")
    try:
        return encode((method, args, kwargs))
    except Exception as error:
        raise UsageError(
            f"the arguments of {method!r} cannot be sent to a worker ({type(error).__name__}: {error});"
            " nothing was sent"
        ) from error
