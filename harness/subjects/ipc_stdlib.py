"""The standard library's two pools as subjects."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from harness.subjects.ipc_futures import SingleWorkerPools, build

if TYPE_CHECKING:
    from collections.abc import Callable


class StdlibPool(SingleWorkerPools):
    """``multiprocessing.Pool``, one of one worker for each."""

    start_method = "spawn"

    def make(self, factory: Callable[[int], Any], index: int) -> Any:
        context = multiprocessing.get_context(self.start_method)
        return context.Pool(1, initializer=build, initargs=(factory, index))

    def submit(self, pool: Any, function: Callable[..., Any], *args: Any) -> Any:
        return pool.apply_async(function, args)

    def result(self, future: Any, timeout: float) -> Any:
        return future.get(timeout)

    def pid_now(self, pool: Any, first: int) -> int:  # noqa: ARG002 - it replaces workers silently
        return int(pool._pool[0].pid)  # noqa: SLF001 - there is no public way

    def end(self, pool: Any) -> None:
        pool.terminate()
        pool.join()


class Executor(SingleWorkerPools):
    """``concurrent.futures.ProcessPoolExecutor``, one of one worker for each."""

    start_method = "spawn"

    def make(self, factory: Callable[[int], Any], index: int) -> Any:
        context = multiprocessing.get_context(self.start_method)
        return ProcessPoolExecutor(1, mp_context=context, initializer=build, initargs=(factory, index))

    def submit(self, pool: Any, function: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = pool.submit(function, *args)
        return future

    def result(self, future: Future[Any], timeout: float) -> Any:
        return future.result(timeout)

    def pid_now(self, pool: Any, first: int) -> int:  # noqa: ARG002 - as above
        return next(iter(pool._processes or {}), -1)  # noqa: SLF001 - there is no public way

    def end(self, pool: Any) -> None:
        pool.shutdown(wait=True, cancel_futures=True)
