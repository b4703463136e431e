"""The stage of an engine check: one server and one trainer, kept from check to check, replaced when they are broken.

A server takes a minute to start, a transfer a third of a second. So there is one of each at a time, and a check that
leaves one of them unfit has it replaced before the next.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from harness.conformance.engine import checkpoint
from harness.conformance.engine.scoring import Mismatch
from harness.conformance.engine.trainers import trainers
from harness.subjects.vllm import Layout, Server, log_tail, start
from harness.subjects.vllm_client import Completion, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.engine.scenarios import EngineScenario
    from harness.conformance.sync.scenarios import SyncScenario
    from harness.ipc import WorkerPool

DTYPE = {"bf16": "bfloat16", "fp32": "float32"}
PROMPTS = (
    [7, 300, 21, 5, 90, 1234, 8, 77, 400, 2000, 15, 16],
    [9, 8, 7, 6, 5, 4, 3, 2, 1000, 1001, 1002, 1003],
    [4095, 17, 17, 17, 2222, 31],
)


@dataclass
class Stage:
    """What runs. Everything is started when it is first asked for, and ended by ``close``."""

    folder: Path
    starts: list[tuple[str, float]] = field(default_factory=list)
    """Each server that was started, and the seconds until it answered."""
    transfers: list[float] = field(default_factory=list)
    """Seconds of each transfer that succeeded, as its caller sees them."""
    _server: Server | None = None
    _served: tuple[str, str, Layout, Callable[..., Server]] | None = None
    _pool: WorkerPool | None = None
    _trained: SyncScenario | None = None
    _started: int = 0
    _versions: int = 0

    def server(self, trainer: SyncScenario, layout: Layout, start: Callable[..., Server] = start) -> Server:
        """A server of the scenario's base model: the one that runs, in whatever state, or a fresh and healthy one.

        While a fresh one starts, so does the trainer, if it does not run: each keeps one processor busy.
        """
        wanted = (trainer.model, trainer.dtype, layout, start)
        if self._server is None or self._served != wanted:
            self.drop_server()
            self._started += 1
            model = self.folder / f"{trainer.model}-{trainer.dtype}"
            if not model.is_dir():
                checkpoint.save(trainer, model)
            self._server = start(
                model, self.folder / f"server-{self._started}.log", DTYPE[trainer.dtype], layout
            )
            self._served = wanted
            begun = time.monotonic()
            self.trainer(trainer)
            self._server.wait_healthy()
            self.starts.append((f"{trainer.model}-{trainer.dtype}-{layout}", time.monotonic() - begun))
        return self._server

    @property
    def log(self) -> Path | None:
        """The log of the latest server; None before the first."""
        return self.folder / f"server-{self._started}.log" if self._started else None

    def log_tail(self) -> str:
        """The end of that log."""
        return log_tail(self.log) if self.log else "no server was started"

    def drop_unfit_server(self) -> None:
        """End the server if it does not answer or is paused: what one check left must not be the next one's fault."""
        if self._server is not None and not _is_fit(self._server):
            self.drop_server()

    def drop_server(self) -> None:
        """End the server; the next one is fresh."""
        server, self._server = self._server, None
        if server is not None:
            server.close()

    def trainer(self, scenario: SyncScenario) -> WorkerPool:
        """The ranks of a trainer of this scenario, on which every method of ``TrainerRank`` can be called."""
        if self._pool is None:
            meeting = Path(tempfile.mkdtemp(dir=self.folder))
            self._pool, self._trained = trainers(scenario.world_size, meeting), None
        if self._trained != scenario:
            self._pool.call("build", scenario)
            self._trained = scenario
        return self._pool

    def drop_trainer(self) -> None:
        """End the trainer; the next one is fresh."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close(grace=0)

    def next_version(self) -> str:
        """A name that no earlier weights had."""
        self._versions += 1
        return f"v{self._versions}"

    def close(self) -> None:
        self.drop_trainer()
        self.drop_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_fit(server: Server) -> bool:
    """Whether the server answers, and is not paused."""
    if server.process.poll() is not None:
        return False
    with contextlib.suppress(Unreachable):
        paused = server.client.ask("GET", "/is_paused", seconds=10).body
        return bool(server.client.health() == 200 and not paused["is_paused"])
    return False


@dataclass
class EngineCell:
    """What an engine check gets: the stage set up for its scenario, the subject, and a place for evidence."""

    stage: Stage
    scenario: EngineScenario
    subject: Callable[..., Server] = start
    evidence: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.stage.drop_unfit_server()

    @property
    def server(self) -> Server:
        return self.stage.server(self.scenario.trainer, self.scenario.layout, self.subject)

    @property
    def trainer(self) -> WorkerPool:
        return self.stage.trainer(self.scenario.trainer)

    def sync(self, *, seconds: float = 30.0, source: str = "module-gather", fault: str = "") -> str:
        """One transfer from the trainer as it is now; the version it was given.

        Raises:
            WorkerFailed: a rank's transfer failed, root cause first.
        """
        version = self.stage.next_version()
        begun = time.monotonic()
        sent = self.trainer.call(
            "sync", self.server.url, version, seconds, source, fault, timeout=6 * seconds
        )
        seconds = time.monotonic() - begun
        self.stage.transfers.append(seconds)
        self.evidence["sync_seconds"] = round(seconds, 3)
        self.evidence.update(
            {k: v for k, v in (sent[0] or {}).items() if k in {"nbytes", "chunks", "tensors"}}
        )
        return version

    def answers(self) -> list[Completion]:
        """What the server makes of the prompts, greedily: every replica of all of them."""
        return [
            self.server.client.complete(prompt, replica=replica)
            for replica in self._replicas()
            for prompt in PROMPTS
        ]

    def _replicas(self) -> list[int | None]:
        """Those that must be asked one by one; a server that has one is asked as it is."""
        count = self.scenario.layout.data_parallel
        return [None] if count == 1 else list(range(count))

    def mismatch(self, *, merged: bool = True) -> Mismatch:
        """Compare the server's log-probabilities, prompt and answer, with transformers' on the trainer's weights.

        Args:
            merged: against the merged weights of this moment; else against the base model.
        """
        answers = self.answers()
        prompts = PROMPTS * len(self._replicas())
        sequences = [[*prompt, *answer.tokens] for prompt, answer in zip(prompts, answers, strict=True)]
        ours = self.trainer.call("score", sequences, merged)[0]
        return Mismatch.between(ours, [answer.prompt_logprobs + answer.logprobs for answer in answers])

    def scores(self) -> list[list[float]]:
        """The server's log-probabilities of the prompts."""
        return [answer.prompt_logprobs for answer in self.answers()]
