"""One pool: the ranks of one specification, asked together, each question with an answer or an end.

The processes belong to its launcher (``harness.ranks.launch``). A process ends by ``close`` (orderly,
bounded), by ``end`` (its stack is taken, then SIGTERM, then SIGKILL to it and to all that it started), or
with the parent.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.errors import HarnessError
from harness.ipc.failure import Failure
from harness.ranks import causes
from harness.ranks.inquest import Evidence
from harness.ranks.launch import InFlight, Ranks
from harness.ranks.settings import RankSettings

if TYPE_CHECKING:
    from harness.ranks.session import Collected

_ORDERLY_S = 10.0
"""How long the sessions of a healthy pool may take to tear down what still lives and to leave the group."""
_COLLECT_GRACE_S = 5.0
"""Collecting takes longer on one rank than on another."""


class PoolNotStarted(HarnessError):
    """The ranks could not be started; the message says which rank, and what it said."""


@dataclass
class Round:
    """One request to every rank, over. Every rank is in exactly one of the three."""

    values: dict[int, Any] = field(default_factory=dict)
    """Ranks that answered."""
    failures: dict[int, Failure] = field(default_factory=dict)
    """Ranks whose process died or whose worker could not answer."""
    ended: dict[int, Evidence] = field(default_factory=dict)
    """Ranks that did not answer in time, and were ended."""


class RankPool:
    """Healthy until a rank fails; then its owner closes it and makes a new one."""

    def __init__(self, settings: RankSettings, ranks: Ranks, store: object) -> None:
        """Take over processes that have been started.

        Args:
            settings: What the ranks were told.
            ranks: The processes; this pool closes them.
            store: The store that they meet at; kept alive with the pool.
        """
        self.settings = settings
        self.spec = settings.spec
        self.ranks = ranks
        self.collected: dict[int, Collected] = {}
        self.items_run = 0
        self._store = store

    def start(self, timeout: float) -> None:
        """Configure every session, join the process group, collect.

        Raises:
            PoolNotStarted: with what the first rank to fail said. The processes still have to be closed.
        """
        deadline = time.monotonic() + timeout
        self._expect("start its session", self.ask("prepare", deadline=deadline, grace=1.0), timeout)
        collected = self.ask("collect", deadline=deadline, grace=_COLLECT_GRACE_S, failing=lambda _: False)
        self._expect("collect", collected, timeout)
        self.collected = collected.values
        self.ranks.remember_capture({rank: found.capture for rank, found in self.collected.items()})

    def ask(
        self,
        method: str,
        *args: Any,
        deadline: float,
        grace: float,
        failing: Callable[[Any], bool] = bool,
    ) -> Round:
        """Ask every rank, and have an answer from, or the end of, each of them by the deadline.

        Args:
            method: Method of ``RankSession``.
            args: Its arguments, the same for all.
            deadline: ``time.monotonic()`` after which a silent rank is questioned and ended.
            grace: Seconds that the others still have once one rank has failed.
            failing: Whether an answer is a failure.
        """
        return self.gather(self.ranks.begin(method, *args), deadline, grace, failing)

    def gather(
        self, request: InFlight, deadline: float, grace: float, failing: Callable[[Any], bool] = bool
    ) -> Round:
        """Have an answer to a request that is on its way, or the end, of every rank; see :meth:`ask`."""
        seen: set[int] = set()
        limit = deadline
        while request.pending and (left := limit - time.monotonic()) > 0:
            request.wait(left)
            for rank in request.replies.keys() - seen:
                seen.add(rank)
                reply = request.replies[rank]
                if reply.failure is not None or failing(reply.value):
                    limit = min(limit, time.monotonic() + grace)
        late = sorted(request.pending)
        request.abandon()
        answered = request.replies.items()
        return Round(
            values={rank: reply.value for rank, reply in answered if reply.failure is None},
            failures={rank: reply.failure for rank, reply in answered if reply.failure is not None},
            ended=self.ranks.end(late) if late else {},
        )

    def ask_survivors(self, method: str, *args: Any, seconds: float) -> Round:
        """Ask once more the ranks that are left when others have ended; nothing is expected of it.

        Args:
            method: Method of ``RankSession``.
            args: Its arguments.
            seconds: How long each of them may take.
        """
        try:
            self.ranks.replace_ended()
        except HarnessError:  # then nobody can be asked any more
            return Round()
        return self.ask(
            method, *args, deadline=time.monotonic() + seconds, grace=seconds, failing=lambda _: False
        )

    def surplus(self, known: frozenset[str]) -> dict[str, str]:
        """Tests that a rank collected and the parent did not: node id to a sentence."""
        return {
            node_id: f"rank {rank} collected {node_id}, and the session that runs the ranks did not"
            for rank, collected in sorted(self.collected.items(), reverse=True)
            for node_id in collected.node_ids - known
        }

    def close(self, *, orderly: bool, grace: float = 1.0) -> None:
        """End every process.

        Args:
            orderly: First let the sessions finish, for a healthy pool; a rank that does not is ended.
            grace: Seconds between asking a process to end and SIGKILL.
        """
        try:
            if orderly:
                self.ask("finish", deadline=time.monotonic() + _ORDERLY_S, grace=1.0)
        finally:
            self.ranks.close(grace)
            self._store = None

    def _expect(self, step: str, answers: Round, timeout: float) -> None:
        size = self.spec.world_size
        if answers.failures:
            rank, failure = min(answers.failures.items(), key=lambda found: found[1].order)
            if failure.kind == "died":
                text = causes.death(rank, size, failure, f"its attempt to {step}")
                raise PoolNotStarted(f"{text}\n{self.ranks.output_of(rank)}")
            raise PoolNotStarted(f"rank {rank} of {size} could not {step}\n{causes.told(failure)}")
        for rank, found in answers.ended.items():
            why = f"It had {timeout:g} s (ini ranks_start_timeout).\n{found.stack}\n{found.output}"
            raise PoolNotStarted(causes.stuck(f"rank {rank} of {size}", f"its attempt to {step}", found, why))
