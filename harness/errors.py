"""The one tree of exceptions that this package raises.

Every error is a sentence for the person who reads it at night: what failed, on which rank or worker, what was
expected, what to do next. Packages derive their own errors from these (``harness.ipc.WorkerFailed``,
``harness.sync.SyncRefused`` …), so ``except HarnessError`` catches all of them and nothing else.
"""


class HarnessError(Exception):
    """Base of every exception that this package raises on purpose."""


class UsageError(HarnessError, ValueError):
    """Bad input, found at the door: the message says what was expected. The command line exits with 2."""


class MissingLibrary(UsageError):
    """An optional library is not installed; the message names the extra that brings it."""

    def __init__(self, library: str, extra: str, purpose: str) -> None:
        super().__init__(
            f"{library} is not installed, and {purpose} needs it: pip install 'lockstep-harness[{extra}]'"
        )
        self.library = library
        self.extra = extra
