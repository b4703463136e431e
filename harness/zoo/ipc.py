"""IPC mutants of calls and their failures: each breaks the reference, or a small pool, in one place.

Those of deadlines, deaths and lifetimes, and the controls, are in ``ipc_lives``.
"""

from __future__ import annotations

import pickle
import time
from typing import TYPE_CHECKING, Any

from harness.conformance.verdict import Kind
from harness.ipc import WorkerFailed
from harness.subjects.ipc_reference import Reference
from harness.zoo import ipc_lives  # noqa: F401 - declares the others of the family
from harness.zoo.ipc_small_pool import PoolFailed, SmallPool, describe
from harness.zoo.mutant import mutant

if TYPE_CHECKING:
    from collections.abc import Callable


@mutant(intended="ipc/smoke", kind=Kind.BROKEN, scenario="spawn")
class NeverAnswers(Reference):
    """Starts, and returns from every call with nothing."""

    triggered = True

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        return []


@mutant(intended="ipc/roundtrip", kind=Kind.RAISED, scenario="fork")
class RaisesExceptionsThatAreValues(Reference):
    """Takes a result that is an exception for a failure."""

    triggered = True

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        results = super().call(method, *args, timeout=timeout)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return results


@mutant(intended="ipc/order", kind=Kind.WRONG, scenario="fork")
class ReturnsResultsAsTheyCome(Reference):
    """Results in the order of their arrival."""

    triggered = True

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        call = self._pool.begin(method, *args)
        call.collect(timeout)
        if call.failures():
            raise WorkerFailed(method, call.failures(), call.size)
        return [reply.value for reply in call.replies.values()]


@mutant(intended="ipc/large", kind=Kind.HANG, scenario="fork")
class WritesBeforeItReads(Reference):
    """Sends a request whole before it reads anything: a worker that is sending a reply reads no request."""

    triggered = True

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        super().start(factory, size)
        exchange = self._pool._board.exchange  # noqa: SLF001 - a mutant reaches where the bug would be

        def send_whole(links: Any) -> None:
            for link in links:
                while not link.flush():
                    time.sleep(0.001)

        exchange.send = send_whole  # type: ignore[method-assign]


@mutant(intended="ipc/threads", kind=Kind.STALE, scenario="fork", report="trl's pipe server")
class GivesRepliesToWhoeverWaits(Reference):
    """Replies carry an id that nobody looks at: the call that was made last gets the next one."""

    triggered = True

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        super().start(factory, size)
        board = self._pool._board  # noqa: SLF001

        def on_message(link: Any, message: Any) -> None:
            owed = [call for call in board._calls.values() if call.expects(link.index)]  # noqa: SLF001
            if owed and owed[-1].arrive(link.index, message):
                board._settled(owed[-1])  # noqa: SLF001

        board.exchange._on_message = on_message  # noqa: SLF001


@mutant(intended="ipc/error-envelope", kind=Kind.MISSING, scenario="fork", report="trl#3433")
class TellsTheMessageOnly(Reference):
    """Raises its own error with the message of the worker's, and nothing else."""

    triggered = True

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        try:
            return super().call(method, *args, timeout=timeout)
        except WorkerFailed as error:
            failure = error.root
        raise RuntimeError(f"worker {failure.worker} failed: {failure.message}")


@mutant(intended="ipc/blame", kind=Kind.MISSING, scenario="fork", report="vllm#23985")
class NamesTheFirstFailureOnly(Reference):
    """Of several workers that failed, one is named."""

    triggered = True

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        try:
            return super().call(method, *args, timeout=timeout)
        except WorkerFailed as error:
            raise WorkerFailed(error.method, error.failures[:1], error.size) from None


@mutant(intended="ipc/drain", kind=Kind.STALE, scenario="fork", report="vllm#57846")
class RaisesInTheReceiveLoop(SmallPool):
    """Replies have no ids, and the first failure is raised before the other workers' replies are read."""

    triggered = True

    def collect(self, number: int, timeout: float) -> list[Any]:
        values = []
        for index, pipe in enumerate(self._pipes):
            if not self.await_any([index], timeout) or not pipe.poll():
                raise PoolFailed(f"worker {index} did not answer")
            _, well, value = pickle.loads(pipe.recv_bytes())
            if not well:
                raise PoolFailed(f"worker {index}: {value}")
            values.append(value)
        return values


def send_results_as_they_are(pipe: Any, factory: Callable[[int], Any], index: int) -> None:
    """A loop that encodes what it sends while it sends it."""
    engine = factory(index)
    pipe.send_bytes(pickle.dumps((0, True, None)))
    while (request := pipe.recv()) is not None:
        number, method, args = request
        try:
            reply = number, True, getattr(engine, method)(*args)
        except BaseException as error:  # noqa: BLE001
            reply = number, False, describe(error)
        pipe.send(reply)


@mutant(intended="ipc/unpicklable-result", kind=Kind.RAISED, scenario="fork", report="vllm#26139")
class SendsResultsAsTheyAre(SmallPool):
    """A result is pickled on its way into the pipe, where nobody catches what that raises: the worker ends."""

    triggered = True
    loop = staticmethod(send_results_as_they_are)


def send_exception_objects(pipe: Any, factory: Callable[[int], Any], index: int) -> None:
    """A loop that sends the exception itself."""
    engine = factory(index)
    pipe.send_bytes(pickle.dumps((0, True, None)))
    while (request := pipe.recv()) is not None:
        number, method, args = request
        try:
            reply = number, True, getattr(engine, method)(*args)
        except BaseException as error:  # noqa: BLE001
            reply = number, False, error
        pipe.send(reply)


@mutant(intended="ipc/unpicklable-exception", kind=Kind.RAISED, scenario="fork", report="trl's pipe server")
class SendsExceptionObjects(SmallPool):
    """The exception object goes over the pipe; one that cannot be pickled ends the worker."""

    triggered = True
    loop = staticmethod(send_exception_objects)


@mutant(intended="ipc/hostile-exception", kind=Kind.STALE, scenario="fork", report="trl's pipe server")
class RebuildsExceptionObjects(RaisesInTheReceiveLoop):
    """As before, and rebuilding it in the parent raises in the middle of the receive loop."""

    triggered = True
    loop = staticmethod(send_exception_objects)


def catch_exceptions_only(pipe: Any, factory: Callable[[int], Any], index: int) -> None:
    """A loop that knows ``Exception`` only."""
    engine = factory(index)
    pipe.send_bytes(pickle.dumps((0, True, None)))
    while (request := pipe.recv()) is not None:
        number, method, args = request
        try:
            reply = pickle.dumps((number, True, getattr(engine, method)(*args)))
        except Exception as error:  # noqa: BLE001
            reply = pickle.dumps((number, False, describe(error)))
        pipe.send_bytes(reply)


@mutant(intended="ipc/base-exception", kind=Kind.RAISED, scenario="fork")
class CatchesExceptionsOnly(SmallPool):
    """``SystemExit`` in a call ends the worker."""

    triggered = True
    loop = staticmethod(catch_exceptions_only)
