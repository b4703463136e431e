"""Engines with one known bug, and the check that must fail each.

A server takes most of a minute to start. So these bugs are put into one that runs, and taken out again: into its
workers, or between the check and what it asks. They are no subjects of a command line; the tests of this package show
them to the checks.
"""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.conformance.engine.stage import EngineCell
from harness.conformance.verdict import Kind
from harness.ipc.guard import families
from harness.subjects.vllm_client import Answer, Client, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from harness.conformance.engine.stage import Stage

_WORKER = "harness.zoo.engine_worker"


@dataclass(frozen=True)
class EngineMutant:
    """One known bug.

    Attributes:
        name: in small letters.
        intended: the check that must fail it.
        kind: how that check must fail it.
        spoil: a block in which the cell that it gives has the bug.
        report: the public report in which people met the bug; empty for none known.
    """

    name: str
    intended: str
    kind: Kind
    spoil: Callable[[EngineCell], AbstractContextManager[EngineCell]]
    report: str = ""


class _Kept:
    """The stage, of which nothing is ended: what a spoilt cell was shown is in good order."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def drop_server(self) -> None:
        """Keep it."""

    def drop_trainer(self) -> None:
        """Keep it."""

    def drop_unfit_server(self) -> None:
        """Keep it."""


class SpoiltCell(EngineCell):
    """A cell with another server or another trainer in the place of its own."""

    false_server: Any = None
    false_trainer: Any = None

    @property
    def server(self) -> Any:
        return super().server if self.false_server is None else self.false_server

    @property
    def trainer(self) -> Any:
        return super().trainer if self.false_trainer is None else self.false_trainer


def _spoilt(cell: EngineCell) -> SpoiltCell:
    return SpoiltCell(_Kept(cell.stage), cell.scenario, cell.subject)  # type: ignore[arg-type]


def _worker(bug: str) -> Callable[[EngineCell], AbstractContextManager[EngineCell]]:
    """A bug of ``engine_worker`` in every worker."""

    @contextlib.contextmanager
    def spoil(cell: EngineCell) -> Iterator[EngineCell]:
        _apply(cell, bug)
        try:
            yield _spoilt(cell)
        finally:
            _apply(cell, "heal")

    return spoil


def _apply(cell: EngineCell, function: str) -> None:
    answer = cell.server.client.collective("probe_apply", f"{_WORKER}:{function}")
    if answer.status != 200:
        raise RuntimeError(f"the workers did not take {function}: {answer.body}")


def _client(lying: type[Client]) -> Callable[[EngineCell], AbstractContextManager[EngineCell]]:
    """A server whose answers reach the check through a client that changes them."""

    @contextlib.contextmanager
    def spoil(cell: EngineCell) -> Iterator[EngineCell]:
        spoilt = _spoilt(cell)
        spoilt.false_server = copy.copy(cell.server)
        spoilt.false_server.client = lying(cell.server.url)
        yield spoilt

    return spoil


class _Mute(Client):
    def complete(self, *_: Any, **__: Any) -> Any:
        raise Unreachable("no answer")


class _Agreeable(Client):
    def ask(self, *given: Any, **named: Any) -> Answer:
        answer = super().ask(*given, **named)
        return Answer(200, answer.body) if 400 <= answer.status < 500 else answer


class _Crashing(Client):
    def ask(self, *given: Any, **named: Any) -> Answer:
        answer = super().ask(*given, **named)
        return Answer(500, answer.body) if 400 <= answer.status < 500 else answer


class _Tireless(Client):
    def ask(self, verb: str, path: str, *given: Any, **named: Any) -> Answer:
        if path == "/metrics":
            return Answer(200, 'vllm:num_requests_running{engine="0"} 1.0')
        return super().ask(verb, path, *given, **named)


class _Shifted(Client):
    """Gives each call the answer of the one before, once one has failed."""

    _late: Answer | None = None

    def collective(self, *given: Any, **named: Any) -> Answer:
        answer = super().collective(*given, **named)
        if answer.status != 200:
            self._late = Answer(200, {"results": ["failing@0"]})
            return answer
        if self._late is None:
            return answer
        self._late, said = answer, self._late
        return said


class _Hushing(Client):
    def collective(self, *given: Any, **named: Any) -> Answer:
        answer = super().collective(*given, **named)
        return answer if answer.status == 200 else Answer(200, {"results": [None]})


class _Cutting(Client):
    def collective(self, *given: Any, **named: Any) -> Answer:
        answer = super().collective(*given, **named)
        return Answer(answer.status, {"results": [each[: 1 << 20] for each in answer.body["results"]]})


class _Unarmed(Client):
    """Of a worker that goes wrong nobody ever hears."""

    def collective(self, method: str, *given: Any, **named: Any) -> Answer:
        return Answer(200, {}) if method == "probe_arm" else super().collective(method, *given, **named)


@contextlib.contextmanager
def _deaf_trainer(cell: EngineCell) -> Iterator[EngineCell]:
    """A trainer whose ranks take every transfer for a success."""

    class Deaf:
        def __getattr__(self, name: str) -> Any:
            return getattr(cell.trainer, name)

        def begin(self, method: str, *given: Any) -> Any:
            *others, _fault = given
            return cell.trainer.begin(method, *others, "")

    spoilt = _spoilt(cell)
    spoilt.false_trainer = Deaf()
    yield spoilt


@contextlib.contextmanager
def _bystander(cell: EngineCell) -> Iterator[EngineCell]:
    """An engine that does not notice the death of its worker, which here is a process of no consequence."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as worker:

        class Unmoved(Client):
            def collective(self, *_: Any, **__: Any) -> Answer:
                return Answer(200, {"results": [{"index": 0, "pid": worker.pid}]})

        with _client(Unmoved)(cell) as spoilt:
            yield spoilt
        worker.kill()


_PARENT = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
print("up", flush=True)
input()
"""


@contextlib.contextmanager
def _orphaning(cell: EngineCell) -> Iterator[EngineCell]:
    """A server whose child outlives it."""
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        children = families([process.pid])
        spoilt = _spoilt(cell)
        spoilt.false_server = copy.copy(cell.server)
        spoilt.false_server.process = process
        try:
            yield spoilt
        finally:
            process.kill()
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)


MUTANTS = (
    EngineMutant("never-answers", "engine/smoke", Kind.BROKEN, _client(_Mute)),
    EngineMutant("a-round-late", "engine/parity", Kind.WRONG, _worker("loads_the_round_before"), "trl#5312"),
    EngineMutant(
        "a-round-late", "engine/round-trip", Kind.STALE, _worker("loads_the_round_before"), "SkyRL#1680"
    ),
    EngineMutant("loads-nothing", "engine/no-op", Kind.SILENT, _worker("loads_nothing"), "vllm#57022"),
    EngineMutant("loads-half", "engine/versions", Kind.STALE, _worker("loads_half"), "verl#7987"),
    EngineMutant("keeps-every-round", "engine/flat", Kind.LEAK, _worker("keeps_every_round"), "vllm#52950"),
    EngineMutant("answers-what-is-too-long", "engine/over-long", Kind.WRONG, _client(_Agreeable), "trl#3433"),
    EngineMutant("takes-the-blame", "engine/malformed", Kind.WRONG, _client(_Crashing)),
    EngineMutant("works-for-nobody", "engine/cancelled", Kind.LEAK, _client(_Tireless)),
    EngineMutant("shifts-its-replies", "engine/pairing", Kind.STALE, _client(_Shifted), "vllm#57846"),
    EngineMutant("hushes-a-failure", "engine/pairing", Kind.SILENT, _client(_Hushing), "vllm#23985"),
    EngineMutant("cuts-a-payload", "engine/payload", Kind.WRONG, _client(_Cutting)),
    EngineMutant("deaf-trainer", "engine/trainer-raises", Kind.SILENT, _deaf_trainer, "trl#6796"),
    EngineMutant("deaf-trainer", "engine/trainer-dies", Kind.SILENT, _deaf_trainer, "trl#6913"),
    EngineMutant("deaf-trainer", "engine/trainer-stops", Kind.SILENT, _deaf_trainer, "verl#7366"),
    EngineMutant("hides-a-worker", "engine/worker-raises", Kind.SILENT, _client(_Unarmed), "vllm#23985"),
    EngineMutant("hides-a-worker", "engine/worker-stops", Kind.SILENT, _client(_Unarmed), "verl#7366"),
    EngineMutant("unmoved-by-death", "engine/worker-dies", Kind.SILENT, _bystander, "vllm#39863"),
    EngineMutant("leaves-a-child", "engine/orphans", Kind.ORPHAN, _orphaning, "vllm#55510"),
)
"""``engine/empty-update`` has none: vLLM itself fails it."""
