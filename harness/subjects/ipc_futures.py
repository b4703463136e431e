"""Pools whose calls are futures, as people build workers with state from them: one single-worker pool per worker.

A shared pool gives a call to whichever process is free, so an engine that belongs to one process has a pool of its
own; its object is built by the initializer and kept in a global. What the subjects below differ in is the pool.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

START_S = 5.0
"""Deadline of the first call, by which a pool shows that its worker has come up."""

_engine: Any = None


def build(factory: Callable[[int], Any], index: int) -> None:
    """The initializer: build the object that this worker's calls are for."""
    global _engine  # noqa: PLW0603 - where an initializer leaves what calls use
    _engine = factory(index)


def use(method: str, args: tuple[Any, ...]) -> Any:
    """One call in the worker."""
    return getattr(_engine, method)(*args)


def process_id() -> int:
    """Of the worker."""
    import os

    return os.getpid()


class SingleWorkerPools(ABC):
    """One pool per worker; the results of a call are awaited in worker order."""

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        self._pools = [self.make(factory, index) for index in range(size)]
        try:
            self._pids = self._results([self.submit(pool, process_id) for pool in self._pools], START_S)
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        return self._results([self.submit(pool, use, method, args) for pool in self._pools], timeout)

    def post(self, method: str, *args: Any) -> None:
        """Nobody keeps the future: the usual way to fire and forget."""
        for pool in self._pools:
            self.submit(pool, use, method, args)

    def pids(self) -> list[int]:
        return [self.pid_now(pool, first) for pool, first in zip(self._pools, self._pids, strict=True)]

    def close(self) -> None:
        for pool in self._pools:
            self.end(pool)

    def _results(self, futures: Sequence[Any], timeout: float) -> list[Any]:
        until = time.monotonic() + timeout
        return [self.result(future, max(0.0, until - time.monotonic())) for future in futures]

    @abstractmethod
    def make(self, factory: Callable[[int], Any], index: int) -> Any:
        """A pool of one worker, whose initializer is :func:`build`."""

    @abstractmethod
    def submit(self, pool: Any, function: Callable[..., Any], *args: Any) -> Any:
        """A future of ``function(*args)``."""

    @abstractmethod
    def result(self, future: Any, timeout: float) -> Any:
        """Its result."""

    @abstractmethod
    def pid_now(self, pool: Any, first: int) -> int:
        """Process id of the pool's present worker; ``first`` is that of its first."""

    @abstractmethod
    def end(self, pool: Any) -> None:
        """Close the pool as its documentation says."""
