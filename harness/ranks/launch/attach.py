"""``torchrun … -m pytest``: every process that torchrun starts becomes the agent of one rank.

Rank 0's process is the session: it collects, drives and reports, once. The others collect and print nothing;
they serve as agents until the session ends. Requests and answers go through the store that torchrun's own
agent keeps, so nothing else has to be reachable but what torchrun reached already.
"""

import datetime as dt
import os
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import dill

from harness.ranks.attachment import attached_rank
from harness.ranks.group import connect_to, part_of
from harness.ranks.launch import Ranks
from harness.ranks.launch.agent import Agent
from harness.ranks.launch.agents import AgentHandle, AgentRanks
from harness.ranks.settings import RankSettings

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

_STOP = "stop"
_SERVE_S = dt.timedelta(days=7)


class AttachLauncher:
    """Gives every pool the processes that torchrun started, as agents. Lives in rank 0's process."""

    def __init__(self) -> None:
        self.host = os.environ["MASTER_ADDR"]
        self.capacity: int | None = int(os.environ["WORLD_SIZE"])
        self.name = f"torchrun gave {self.capacity}"
        self._agents: dict[int, AgentHandle] = {0: _Here()}
        for rank in range(1, self.capacity):
            self._agents[rank] = _There(rank)

    def warm_up(self, settings: RankSettings) -> None:
        """Nothing to do before the first pool."""

    def launch(self, settings: RankSettings, store: "Store", *, start_timeout: float) -> Ranks:  # noqa: ARG002
        """Start a pool on the first agents."""
        chosen = {rank: self._agents[rank] for rank in range(settings.spec.processes)}
        return AgentRanks(settings, chosen, start_timeout=start_timeout)

    def close(self) -> None:
        """Let the other processes end."""
        for agent in self._agents.values():
            agent.call(_STOP)


def serve() -> None:
    """Be the agent of this process's rank until the session in rank 0's process is over."""
    rank = attached_rank()
    requests, answers = _store(rank), _store(rank)
    agent = Agent()
    writing = threading.Lock()
    told = 0

    def answer(number: int, method: str, args: tuple[Any, ...]) -> None:
        nonlocal told
        result: Any = None
        error: BaseException | None = None
        try:
            result = getattr(agent, method)(*args)
        except Exception as raised:  # noqa: BLE001 - the parent is told, whatever it was
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        with writing:
            answers.set(f"told/{told}", dill.dumps((number, result, error)))
            told += 1

    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="harness-agent") as threads:
        for number in range(1 << 62):
            method, args = dill.loads(requests.get(f"asked/{number}"))
            requests.delete_key(f"asked/{number}")
            if method == _STOP:
                break
            threads.submit(answer, number, method, args)
    agent.close(1.0)


class _Here:
    """The agent of rank 0, in this process."""

    def __init__(self) -> None:
        self._agent = Agent()
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="harness-agent")

    def call(self, method: str, *args: Any) -> "Future[Any]":
        if method == _STOP:
            self._threads.shutdown(wait=False)
            return Future()
        return self._threads.submit(getattr(self._agent, method), *args)


class _There:
    """The agent of another rank, through torchrun's store."""

    def __init__(self, rank: int) -> None:
        self._requests = _store(rank)
        self._waiting: dict[int, Future[Any]] = {}
        self._asked = 0
        self._lock = threading.Lock()
        threading.Thread(
            target=self._listen, args=(_store(rank),), name=f"harness-agent-{rank}", daemon=True
        ).start()

    def call(self, method: str, *args: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        with self._lock:
            number, self._asked = self._asked, self._asked + 1
            self._waiting[number] = future
            self._requests.set(f"asked/{number}", dill.dumps((method, args)))
        return future

    def _listen(self, answers: "Store") -> None:
        for told in range(1 << 62):
            number, result, error = dill.loads(answers.get(f"told/{told}"))
            answers.delete_key(f"told/{told}")
            future = self._waiting.pop(number)
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


def _store(rank: int) -> "Store":
    """A connection of its own to torchrun's store: a waiting ``get`` blocks all else on it."""
    store = connect_to(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), _SERVE_S)
    run = f"{os.environ['TORCHELASTIC_RUN_ID']}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    return part_of(store, f"harness/{run}/{rank}")
