"""This package's own worker pool as a subject."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.ipc import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.ipc import StartMethod


class Reference:
    """``harness.ipc.WorkerPool``."""

    start_method: StartMethod = "spawn"

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        self._pool = WorkerPool(factory, size, start_method=self.start_method)

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        return self._pool.call(method, *args, timeout=timeout)

    def post(self, method: str, *args: Any) -> None:
        self._pool.post(method, *args)

    def pids(self) -> list[int]:
        return self._pool.pids()

    def close(self) -> None:
        self._pool.close()
