"""A pool of one screen, without the faults that its mutants add one by one.

It is what somebody writes who has read the reports: ids, encoded replies, every reply collected before anything is
raised, sentinels watched, ends closed at once. It is not the reference: one thread, no guard, no large data both ways.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import time
import traceback
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from collections.abc import Callable

START_S = 30.0
ASK_S = 0.02


class PoolFailed(Exception):
    """What a call raises: every failure, one paragraph each."""


def serve(pipe: Any, factory: Callable[[int], Any], index: int) -> None:
    """The child's loop: a request is (number, method, arguments); number None is a post, None alone the end."""
    engine: Any = None
    owed = ""

    def build() -> None:
        nonlocal engine
        engine = factory(index)

    pipe.send_bytes(reply_to(0, build))
    while (request := pipe.recv()) is not None:
        number, method, args = request
        if number is None:
            owed = pickle.loads(reply_to(0, getattr(engine, method), *args, result=False))[2] or owed
        elif owed:
            pipe.send_bytes(pickle.dumps((number, False, owed)))
            owed = ""
        else:
            pipe.send_bytes(reply_to(number, getattr(engine, method), *args))


def reply_to(number: int, function: Callable[..., Any], *args: Any, result: bool = True) -> bytes:
    """The reply, encoded: (number, True, result) or (number, False, text)."""
    try:
        value = function(*args)
        reply = pickle.dumps((number, True, value if result else None))
        pickle.loads(reply)
    except BaseException as error:  # noqa: BLE001 - the worker must live
        return pickle.dumps((number, False, describe(error)))
    return reply


def describe(error: BaseException) -> str:
    """The remote traceback, as far as it can be printed."""
    try:
        return "".join(traceback.format_exception(error))
    except BaseException:  # noqa: BLE001 - printing runs the exception's own code
        return f"{type(error).__name__} (cannot be printed)"


class SmallPool:
    """See the module; mutants override one method or the loop."""

    start_method = "spawn"
    triggered = False
    loop: ClassVar[Callable[..., None]] = staticmethod(serve)

    def start(self, factory: Callable[[int], Any], size: int) -> None:
        context: Any = multiprocessing.get_context(self.start_method)
        self._number = 0
        self._pipes: list[Any] = []
        self._processes: list[Any] = []
        for index in range(size):
            near, far = context.Pipe()
            process = context.Process(target=self.loop, args=(far, factory, index))
            process.start()
            self.part_with(far)
            self._pipes.append(near)
            self._processes.append(process)
        self.await_start()

    def part_with(self, far: Any) -> None:
        """The parent has no use for the child's end."""
        far.close()

    def await_start(self) -> None:
        """Every worker says whether it could build its object."""
        try:
            self.collect(0, START_S)
        except PoolFailed:
            self.close()
            raise

    def call(self, method: str, *args: Any, timeout: float) -> list[Any]:
        self._number += 1
        for pipe in self._pipes:
            self.ask(pipe, (self._number, method, args))
        return self.collect(self._number, timeout)

    def post(self, method: str, *args: Any) -> None:
        for pipe in self._pipes:
            self.ask(pipe, (None, method, args))

    def ask(self, pipe: Any, request: Any) -> None:
        """A worker that has ended is for :meth:`collect` to report."""
        try:
            pipe.send(request)
        except OSError:
            return

    def collect(self, number: int, timeout: float) -> list[Any]:
        """Every worker's reply to this request; what answers an earlier one is dropped."""
        until = time.monotonic() + timeout
        replies: dict[int, tuple[bool, Any]] = {}
        while pending := [index for index in range(len(self._pipes)) if index not in replies]:
            if not self.await_any(pending, until - time.monotonic()):
                replies.update((index, (False, f"no reply in {timeout} s")) for index in pending)
                break
            for index in pending:
                reply = self.receive(index)
                if reply is not None and reply[0] == number:
                    replies[index] = reply[1:]
        failed = [f"worker {index}: {value}" for index, (well, value) in sorted(replies.items()) if not well]
        if failed:
            raise PoolFailed("\n".join(failed))
        return [replies[index][1] for index in range(len(self._pipes))]

    def await_any(self, pending: list[int], seconds: float) -> bool:
        """Whether a reply is here or a worker has ended.

        A sentinel is the end of a pipe, which a child that a worker has forked holds open after the worker's end: so
        the processes themselves are asked as well, every few hundredths of a second.
        """
        watched = [self._pipes[index] for index in pending]
        watched += [self._processes[index].sentinel for index in pending]
        until = time.monotonic() + seconds
        while not connection.wait(watched, max(0, min(ASK_S, until - time.monotonic()))):
            if not all(self._processes[index].is_alive() for index in pending):
                return True
            if time.monotonic() > until:
                return False
        return True

    def receive(self, index: int) -> tuple[int, bool, Any] | None:
        """A reply that is here; a worker's end counts as its failure of whatever is asked."""
        pipe = self._pipes[index]
        if not pipe.poll() and self._processes[index].is_alive():
            return None
        with contextlib.suppress(EOFError, OSError):
            if pipe.poll():
                reply: tuple[int, bool, Any] = pickle.loads(pipe.recv_bytes())
                return reply
        return self._number, False, f"ended, exit status {self._processes[index].exitcode}"

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes]

    def close(self) -> None:
        for pipe in self._pipes:
            self.ask(pipe, None)
        until = time.monotonic() + 1
        for process in self._processes:
            process.join(max(0, until - time.monotonic()))
            process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
