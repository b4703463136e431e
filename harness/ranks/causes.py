"""Sentences for ranks that left no report of their own: what ended them, why that usually is, where to look."""

from harness.ipc.failure import Failure, describe_exit

_USUAL = {
    -9: "Usually the kernel's out-of-memory killer (see dmesg) or somebody's kill -9.",
    -11: "A crash in native code; faulthandler's stack, if it could write one, is in the output below.",
    -6: "Native code called abort(): a failed C++ assertion or an uncaught C++ exception; see the output below.",
    -15: "Somebody asked it to end.",
    0: "Something called os._exit(0), or native code called exit(0): a test must return, not exit.",
}


def death(rank: int, world_size: int, failure: Failure, when: str) -> str:
    """The body of a report about a rank whose process ended, for somebody who reads it at night."""
    status = failure.exit_status
    usual = _USUAL.get(
        status if status is not None else 1, "Something called os._exit, or an extension ended it."
    )
    return (
        f"rank {rank} of {world_size} {describe_exit(status)} during {when}, without sending a report.\n{usual}\n"
        "The other ranks' parts are in the sections below; the next test gets a fresh pool."
    )


def unreachable(rank: int, failure: Failure) -> str:
    """The body of a report about a rank that answered with something other than a report."""
    remote = f"\n{failure.traceback.rstrip()}" if failure.traceback else ""
    return f"rank {rank} did not run the test: {failure.message or failure.headline()}{remote}"


def stuck(rank: int, world_size: int, when: str, place: str, collective: str, why: str) -> str:
    """The body of a report about a rank that had to be ended."""
    recorded = f"\nLast collective it recorded: {collective}." if collective else ""
    return f"rank {rank} of {world_size} was stuck during {when} at {place}.{recorded}\n{why}"
