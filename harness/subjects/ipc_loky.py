"""loky's executor as a subject: made to outlive the deaths that break the standard library's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.subjects.ipc_futures import build
from harness.subjects.ipc_stdlib import Executor

if TYPE_CHECKING:
    from collections.abc import Callable


class Loky(Executor):
    """``loky.ProcessPoolExecutor``, one of one worker for each; it has one start method, its own."""

    @staticmethod
    def supports(scenario: Any) -> str | None:
        return None if scenario.id == "spawn" else "loky starts workers by its own method only"

    def make(self, factory: Callable[[int], Any], index: int) -> Any:
        from loky import ProcessPoolExecutor

        return ProcessPoolExecutor(1, initializer=build, initargs=(factory, index))

    def end(self, pool: Any) -> None:
        pool.shutdown(wait=True)
