"""Sentences for ranks that left no report of their own: what ended them, and why that usually is."""

from harness.ipc.failure import Failure, describe_exit
from harness.ranks.inquest import Evidence

_USUAL = {
    -9: "Usually the kernel's out-of-memory killer (see dmesg) or somebody's kill -9.",
    -11: "A crash in native code; faulthandler's stack, if it could write one, is in the output below.",
    -6: "Native code called abort(): a failed C++ assertion or an uncaught C++ exception; see the output.",
    -15: "Somebody asked it to end.",
    0: "Something called os._exit(0), or native code called exit(0): a test must return, not exit.",
}


def death(rank: int, world_size: int, failure: Failure, when: str) -> str:
    """The body of a report about a rank whose process ended, for somebody who reads it at night."""
    status = failure.exit_status
    usual = _USUAL.get(
        status if status is not None else 1, "Something called os._exit, or an extension ended it."
    )
    how = describe_exit(status).removesuffix(" without being asked")
    return f"rank {rank} of {world_size} {how} during {when}, without sending a report.\n{usual}"


def cause_of_death(failure: Failure) -> str:
    """The short form, for a table."""
    return describe_exit(failure.exit_status).removesuffix(" without being asked")


def told(failure: Failure) -> str:
    """What a worker said that could not do as asked: its exception, with its traceback."""
    return failure.traceback.rstrip() or failure.headline()


def stuck(who: str, when: str, found: Evidence, why: str) -> str:
    """The body of a report about a rank that had to be ended.

    Args:
        who: The rank, as in "rank 0 of 2".
        when: What it was doing.
        found: What it said before its end.
        why: Who ended it, and when.
    """
    if found.silent:
        state = f"{who} was silent during {when}: it answered neither the signal for its stack nor the store."
        return f"{state}\nIts process may be stopped, or native code may hold the interpreter.\n{why}"
    recorded = f"\nLast collective it recorded: {found.collective}." if found.collective else ""
    return f"{who} was stuck during {when} at {found.place}.{recorded}\n{why}"
