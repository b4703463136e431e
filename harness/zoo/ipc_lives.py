"""IPC mutants of deadlines, deaths, posts and lifetimes, and the controls of the family."""

from __future__ import annotations

import asyncio
import contextlib
import math
import pickle
from multiprocessing import connection
from typing import TYPE_CHECKING, Any

from harness.conformance.verdict import Kind
from harness.ipc import WorkerFailed, WorkerPool, guard, guarding
from harness.ipc.process import WorkerProcess
from harness.subjects.ipc_reference import Reference
from harness.zoo.ipc_small_pool import SmallPool, reply_to
from harness.zoo.mutant import control, mutant

if TYPE_CHECKING:
    from collections.abc import Callable


@mutant(intended="ipc/deadline", kind=Kind.STALE, scenario="fork", report="vllm#57846")
class TakesTheNextReply(SmallPool):
    """Replies have no ids: whatever comes next is the answer."""

    triggered = True

    def receive(self, index: int) -> tuple[int, bool, Any] | None:
        reply = super().receive(index)
        return None if reply is None else (self._number, *reply[1:])


@mutant(intended="ipc/death", kind=Kind.SILENT, scenario="fork", report="trl's pipe server")
class WatchesPipesOnly(SmallPool):
    """No sentinel is watched, and the parent keeps the child's end, so that no end of file ever comes."""

    triggered = True

    def part_with(self, far: Any) -> None:
        self._kept = [*getattr(self, "_kept", []), far]

    def await_any(self, pending: list[int], seconds: float) -> bool:
        return bool(connection.wait([self._pipes[index] for index in pending], max(0, seconds)))

    def receive(self, index: int) -> tuple[int, bool, Any] | None:
        return super().receive(index) if self._pipes[index].poll() else None


@mutant(intended="ipc/eof", kind=Kind.SILENT, scenario="fork", report="trl's pipe server")
class ClosesTheEndsAfterTheLoop(WatchesPipesOnly):
    """The children's ends are closed when all have been started: by then the later ones have inherited them."""

    triggered = True

    def await_start(self) -> None:
        for far in self._kept:
            far.close()
        super().await_start()


@mutant(intended="ipc/stopped", kind=Kind.HANG, scenario="fork", report="verl#7366")
class WaitsWithoutALimit(SmallPool):
    """The deadline of a call is ignored."""

    triggered = True

    def collect(self, number: int, timeout: float) -> list[Any]:
        return super().collect(number, max(timeout, 3600.0))


@mutant(intended="ipc/startup", kind=Kind.SILENT, scenario="fork", report="trl's pipe server")
class DoesNotAskWhetherTheyStarted(SmallPool):
    """Start returns when the processes have been forked."""

    triggered = True

    def await_start(self) -> None:
        pass


def answer_posts(pipe: Any, factory: Callable[[int], Any], index: int) -> None:
    """A loop that answers posts too."""
    engine = factory(index)
    pipe.send_bytes(pickle.dumps((0, True, None)))
    while (request := pipe.recv()) is not None:
        number, method, args = request
        pipe.send_bytes(reply_to(number or 0, getattr(engine, method), *args))


@mutant(intended="ipc/post", kind=Kind.WRONG, scenario="fork", report="trl's pipe server")
class AnswersPosts(TakesTheNextReply):
    """A post is answered, and the next call takes that for its own."""

    triggered = True
    loop = staticmethod(answer_posts)


def swallow_failed_posts(pipe: Any, factory: Callable[[int], Any], index: int) -> None:
    """A loop that forgets what a post raised."""
    engine = factory(index)
    pipe.send_bytes(pickle.dumps((0, True, None)))
    while (request := pipe.recv()) is not None:
        number, method, args = request
        if number is None:
            with contextlib.suppress(Exception):
                getattr(engine, method)(*args)
        else:
            pipe.send_bytes(reply_to(number, getattr(engine, method), *args))


@mutant(intended="ipc/post", kind=Kind.SILENT, scenario="fork", report="trl's pipe server")
class SwallowsFailedPosts(SmallPool):
    """A post that fails is nobody's business."""

    triggered = True
    loop = staticmethod(swallow_failed_posts)


@mutant(intended="ipc/close", kind=Kind.ORPHAN, scenario="fork", report="ray#31738")
class ForgetsTheFamily(Reference):
    """Ends its workers, and not what they have started."""

    triggered = True

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        guard.kill_families = lambda *_, **__: []
        super().start(factory, size)


@mutant(intended="ipc/close", kind=Kind.HANG, scenario="fork")
class WaitsForTheCallToEnd(Reference):
    """Close lets every call come to its end, however long that takes."""

    triggered = True

    def close(self) -> None:
        self._pool.close(grace=math.inf)


@mutant(intended="ipc/parent-death", kind=Kind.ORPHAN, scenario="fork", report="vllm#55510")
class HasNoGuard(Reference):
    """A worker notices that its owner is gone when it next looks at its pipe."""

    triggered = True

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        guarding.watch_over = lambda pid: None
        super().start(factory, size)


@mutant(intended="ipc/resources", kind=Kind.LEAK, scenario="fork")
class LeavesPipesOpen(Reference):
    """The parent's end of a pipe stays open when its worker has ended."""

    triggered = True

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        WorkerProcess._close_pipe = lambda _: None  # type: ignore[assignment,method-assign]  # noqa: SLF001
        super().start(factory, size)


@control(scenarios=("fork",), tempts=("ipc/error-envelope", "ipc/blame", "ipc/drain", "ipc/deadline"))
class AsksThroughAnEventLoop(Reference):
    """Every call is awaited in an event loop, and its failures are ordinary RuntimeErrors."""

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        try:
            return asyncio.run(self._pool.acall(method, *args, timeout=timeout))
        except WorkerFailed as error:
            raise RuntimeError(str(error)) from None


@control(scenarios=("fork",), tempts=("ipc/order", "ipc/blame", "ipc/drain", "ipc/large"))
class HasOnePoolPerWorker(Reference):
    """Each worker is a pool of its own, asked one after the other and read in the reverse order."""

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        self._pools: list[WorkerPool] = []
        try:
            for index in range(size):
                given = _Numbered(factory, index)
                self._pools.append(
                    WorkerPool(given, 1, start_method=self.start_method, name=f"worker{index}")
                )
        except BaseException:
            self.close()
            raise

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        calls = [pool.begin(method, *args) for pool in self._pools]
        for call in reversed(calls):
            call.collect(timeout)
        failed = {index: call.failures() for index, call in enumerate(calls) if call.failures()}
        if failed:
            told = (
                f"worker {index}: {failures[0].headline()}\n{failures[0].traceback}"
                for index, failures in failed.items()
            )
            raise RuntimeError("\n".join(told))
        return [call.replies[0].value for call in calls]

    def post(self, method: str, *args: Any) -> None:
        for pool in self._pools:
            pool.post(method, *args)

    def pids(self) -> list[int]:
        return [pid for pool in self._pools for pid in pool.pids()]

    def close(self) -> None:
        for pool in self._pools:
            pool.close()


class _Numbered:
    """A factory that knows its number better than its pool does."""

    def __init__(self, factory: Callable[[int], Any], index: int) -> None:
        self._factory, self._index = factory, index

    def __call__(self, _: int) -> Any:
        return self._factory(self._index)
