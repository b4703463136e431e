"""The ranks of a pool as seen through their agents, wherever those are.

Clocks of several machines have nothing in common, so each agent's is compared with this machine's once, and
every time that comes back is translated: the first rank to fail is the first on any machine, up to half a
round trip.
"""

import dataclasses
import queue
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from harness.ipc import Failure, Reply
from harness.ipc.failure import describe_exception, failure_from
from harness.ranks.inquest import Evidence
from harness.ranks.settings import RankSettings

if TYPE_CHECKING:
    from concurrent.futures import Future

_CLOCK_READINGS = 5
_ANSWER_S = 15.0
"""For an agent, which is never stuck itself, to end its rank or to tell what it wrote."""


class AgentHandle(Protocol):
    """How to reach one agent."""

    def call(self, method: str, *args: Any) -> "Future[Any]":
        """Begin a method of ``Agent``; requests to one agent may overlap."""


class AgentRanks:
    """One pool. The agents outlive it: the next pool starts on the same ones."""

    def __init__(
        self, settings: RankSettings, agents: Mapping[int, AgentHandle], *, start_timeout: float
    ) -> None:
        """Start a process at every agent.

        Args:
            settings: What the ranks must know.
            agents: Rank to agent.
            start_timeout: Seconds for all processes to come up.

        Raises:
            Exception: whatever the first agent to fail raised.
        """
        self._agents = dict(agents)
        self._ahead = {rank: _clock_ahead(agent) for rank, agent in self._agents.items()}
        starts = [agent.call("start", rank, settings, start_timeout) for rank, agent in self._agents.items()]
        for start in starts:
            start.result(start_timeout + _ANSWER_S)

    def begin(self, method: str, *args: Any) -> "AgentsInFlight":
        """Send a request to every agent."""
        request = AgentsInFlight(set(self._agents), self._ahead)
        for rank, agent in self._agents.items():
            request.watch(rank, agent.call("ask", method, *args), method)
        return request

    def end(self, ranks: Iterable[int]) -> dict[int, Evidence]:
        """Question and end, at all agents at once."""
        asked = {rank: self._agents[rank].call("end") for rank in ranks}
        found: dict[int, Evidence] = {rank: answer.result(_ANSWER_S) for rank, answer in asked.items()}
        return {
            rank: dataclasses.replace(evidence, at=evidence.at - self._ahead[rank])
            for rank, evidence in found.items()
        }

    def replace_ended(self) -> None:
        """Every agent is asked by itself."""

    def output_of(self, rank: int) -> str:
        """What the rank had written."""
        written: str = self._agents[rank].call("output").result(_ANSWER_S)
        return written

    def mark(self) -> None:
        """A test begins."""
        for agent in self._agents.values():
            agent.call("mark")

    def remember_capture(self, descriptors: dict[int, tuple[int, ...]]) -> None:
        """Each agent opens its own rank's files."""
        for rank, numbers in descriptors.items():
            self._agents[rank].call("remember_capture", numbers)

    def close(self, grace: float) -> None:
        """End the processes; the agents stay."""
        for answer in [agent.call("close", grace) for agent in self._agents.values()]:
            answer.result(grace + _ANSWER_S)


class AgentsInFlight:
    """A request to every agent."""

    def __init__(self, pending: set[int], ahead: Mapping[int, float]) -> None:
        self.pending = pending
        self.replies: dict[int, Reply] = {}
        self._ahead = ahead
        self._arrived: queue.SimpleQueue[tuple[int, Reply]] = queue.SimpleQueue()

    def watch(self, rank: int, answer: "Future[Any]", method: str) -> None:
        """Expect an agent's answer; what the agent itself raises is its rank's failure."""

        def arrived(done: "Future[Any]") -> None:
            error = done.exception()
            if error is None:
                reply = _translated(done.result(), self._ahead[rank])
            else:
                failure = failure_from(describe_exception(error), worker=rank, kind="raised", method=method)
                reply = Reply(failure=failure)
            self._arrived.put((rank, reply))

        answer.add_done_callback(arrived)

    def wait(self, timeout: float) -> bool:
        """Wait for the next answer."""
        try:
            rank, reply = self._arrived.get(timeout=timeout)
        except queue.Empty:
            return False
        self.pending.discard(rank)
        self.replies[rank] = reply
        return True

    def abandon(self) -> None:
        """What still arrives is put into a queue that nobody reads."""
        self.pending = set()


def _clock_ahead(agent: AgentHandle) -> float:
    """How far an agent's clock is ahead of this machine's, from the quickest of a few readings."""
    readings = []
    for _ in range(_CLOCK_READINGS):
        before = time.monotonic()
        theirs: float = agent.call("clock").result(_ANSWER_S)
        after = time.monotonic()
        readings.append((after - before, theirs - (before + after) / 2))
    return min(readings)[1]


def _translated(reply: Reply, ahead: float) -> Reply:
    """A reply whose times are this machine's."""
    failure: Failure | None = reply.failure
    if failure is not None:
        return Reply(failure=dataclasses.replace(failure, at=failure.at - ahead))
    if hasattr(reply.value, "at"):
        return Reply(value=dataclasses.replace(reply.value, at=reply.value.at - ahead))
    return reply
