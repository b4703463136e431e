"""What the reference pool is measured against: the same round trip over each of the usual ways, one worker each."""

from __future__ import annotations

import multiprocessing
import multiprocessing.pool
import os
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

import multiprocess

from harness.ipc import WorkerPool

if TYPE_CHECKING:
    from collections.abc import Callable


class Echo:
    """Answers with what it was asked."""

    def __init__(self, index: int) -> None:
        self.index = index

    def echo(self, value: Any) -> Any:
        return value

    def spin(self, seconds: float) -> int:
        """Be busy without using a processor, as an engine is that waits for its device."""
        import time

        time.sleep(seconds)
        return self.index


def echo(value: Any) -> Any:
    """The same as a function, for pools that call functions."""
    return value


def answer_for_ever(pipe: Any) -> None:
    """The worker of a bare pipe."""
    while True:
        pipe.send(pipe.recv())


class Reference:
    """The pool of this project."""

    def __init__(self, start_method: Any = "forkserver") -> None:
        self.pool = WorkerPool(Echo, 1, start_method=start_method)

    def round_trip(self, value: Any) -> Any:
        return self.pool.call("echo", value)[0]

    def close(self) -> None:
        self.pool.close()


class BarePipe:
    """``send`` and ``recv`` on a pipe of ``multiprocess``: no ids, no deadline, no sentinel, no failures."""

    def __init__(self, package: Any = multiprocess) -> None:
        context = package.get_context("forkserver")
        self._pipe, far = context.Pipe()
        self._process = context.Process(target=answer_for_ever, args=(far,), daemon=True)
        self._process.start()
        far.close()

    def round_trip(self, value: Any) -> Any:
        self._pipe.send(("echo", (value,), {}))
        return self._pipe.recv()[1][0]

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()


class StdlibPool:
    """``multiprocessing.Pool``."""

    def __init__(self) -> None:
        self._pool: multiprocessing.pool.Pool = multiprocessing.get_context("forkserver").Pool(1)

    def round_trip(self, value: Any) -> Any:
        return self._pool.apply(echo, (value,))

    def close(self) -> None:
        self._pool.terminate()
        self._pool.join()


class Executor:
    """``concurrent.futures.ProcessPoolExecutor``."""

    def __init__(self) -> None:
        self._executor = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("forkserver"))
        self.round_trip(os.getpid())

    def round_trip(self, value: Any) -> Any:
        return self._executor.submit(echo, value).result()

    def close(self) -> None:
        self._executor.shutdown()


PEERS: dict[str, Callable[[], Any]] = {
    "bare multiprocess pipe": BarePipe,
    "bare stdlib pipe": lambda: BarePipe(multiprocessing),
    "multiprocessing.Pool": StdlibPool,
    "ProcessPoolExecutor": Executor,
}
