"""What the pool raises: one exception for failed workers, one for use after close or from the wrong process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness.errors import HarnessError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.ipc.failure import Failure


class WorkerFailed(HarnessError):
    """At least one worker failed a call. Every worker's reply had been collected before this was raised.

    Attributes:
        method: what was called; ``start`` when a worker could not start.
        failures: every failure, root cause first.
        size: how many workers were asked.
    """

    def __init__(self, method: str, failures: Iterable[Failure], size: int) -> None:
        found: list[Failure] = []
        for failure in failures:
            found.extend((failure, *failure.also))
        self.method = method
        self.failures: tuple[Failure, ...] = tuple(sorted(found, key=lambda failure: failure.order))
        self.size = size
        super().__init__(self._message())

    @property
    def root(self) -> Failure:
        """The earliest failure: the one to read first."""
        return self.failures[0]

    def _message(self) -> str:
        workers = len({failure.worker for failure in self.failures})
        lines = [f"{workers} of {self.size} workers failed {self.method!r}; root cause first"]
        lines += [f"  {failure.headline()}" for failure in self.failures]
        for failure in self.failures:
            if failure.traceback:
                lines += ["", f"worker {failure.worker}, remote traceback:", failure.traceback.rstrip()]
        return "\n".join(lines)

    def __reduce__(self) -> tuple[type[WorkerFailed], tuple[str, tuple[Failure, ...], int]]:
        return WorkerFailed, (self.method, self.failures, self.size)


class PoolClosed(UsageError):
    """The pool was used after ``close()``."""


class ForeignProcess(UsageError):
    """The pool was used in a process that was forked from its owner."""


class UnreportedPost(RuntimeWarning):
    """A post failed, and the pool was closed before a call could report it."""
