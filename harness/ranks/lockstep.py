"""Run one item on all ranks of a pool, phase by phase, and report it as if it had run here."""

import math
import time
from collections.abc import Callable
from typing import Any

import pytest

from harness.ranks.answer import Answer
from harness.ranks.availability import unavailable
from harness.ranks.deadline import Deadline, deadline_of
from harness.ranks.marker import RankSpec
from harness.ranks.pool import PoolNotStarted, RankPool
from harness.ranks.pools import RankPools
from harness.ranks.reading import Reader
from harness.ranks.session import PhaseReply
from harness.ranks.verdict import When, complaint, skip, verdict

_CLEAN_UP_S = 10.0
"""What fixtures get to tear down after a failure, before the deadline of the item."""

Log = Callable[[pytest.TestReport], None]


class LockstepItem:
    """One item's run on its ranks. ``run`` once."""

    def __init__(self, item: pytest.Item, spec: RankSpec, pools: RankPools, log: Log) -> None:
        """Prepare a run.

        Args:
            item: The item in the parent.
            spec: Which ranks.
            pools: Where they come from.
            log: Called with the report of each phase as soon as the phase is over.
        """
        self.item = item
        self.spec = spec
        self.pools = pools
        self.log = log
        debugging = item.config.getoption("rank_pdb") is not None
        self.grace = math.inf if debugging else float(item.config.getini("ranks_grace"))
        self.exit_reason: str | None = None
        self.changes: list[str] = []
        """What the item left changed in its ranks' processes."""
        self.leaks: list[str] = []
        """Resources that it did not give back."""
        self.failed = False
        self._broken = False

    def run(self, next_id: str | None) -> None:
        """Run all phases. The pool is retired unless everything passed and nothing was left changed.

        Args:
            next_id: What this pool runs next, or None: then every fixture is torn down.
        """
        reason = unavailable(self.spec)
        if reason is not None:
            self.log(skip(self.item, reason))
            return
        try:
            pool = self.pools.get(self.spec)
            self.pools.check(pool, self.item.nodeid)
        except PoolNotStarted as refused:
            self.failed = True
            self.log(complaint(self.item, "setup", str(refused)))
            return
        try:
            self._phases(pool, deadline_of(self.item), next_id)
        except BaseException:
            self.pools.retire(self.spec, grace=0.2)  # the ranks are in the middle of something
            raise
        pool.items_run += 1
        if self.failed or self._broken or self.changes or self.leaks:
            self.pools.retire(self.spec)

    def _phases(self, pool: RankPool, deadline: Deadline, next_id: str | None) -> None:
        reader = Reader(self.item, pool, self.grace, f"{deadline.seconds:g} s ({deadline.source})")
        pool.ranks.mark()
        setup = self._phase(pool, reader, "setup", deadline.whole, self.item.nodeid, next_id)
        if setup.passed and not self.item.config.getoption("setuponly", False):
            self._phase(pool, reader, "call", deadline.of_call())
        session = self.item.session
        if self.failed or session.shouldfail or session.shouldstop:
            next_id = None  # this pool ends, or the session does: what lives must be torn down now
        if self._broken:
            self._clean_up(pool)
        else:
            limit = deadline.whole
            if self.failed:
                limit = min(max(limit, time.monotonic() + self.grace), time.monotonic() + _CLEAN_UP_S)
            self._phase(pool, reader, "teardown", limit, next_id)

    def _phase(
        self, pool: RankPool, reader: Reader, when: When, limit: float, *args: Any
    ) -> pytest.TestReport:
        started = time.time()
        answered = pool.ask(when, *args, deadline=limit, grace=self.grace, failing=_not_passed)
        answers = reader.read(answered, when)
        for answer in answers:
            self.exit_reason = self.exit_reason or answer.exit_reason
            self.changes += [f"rank {answer.rank}: {change}" for change in answer.changes]
            self.leaks += [f"rank {answer.rank}: {leak}" for leak in answer.leaks]
        self._broken = self._broken or not all(answer.usable for answer in answers)
        report = verdict(self.item, when, answers, started)
        if report.passed and self.leaks and self.item.config.getoption("ranks_audit") == "fail":
            report = complaint(self.item, when, "the test left behind\n" + "\n".join(self.leaks))
        self.failed = self.failed or report.failed
        self.log(report)
        return report

    def _clean_up(self, pool: RankPool) -> None:
        """Let the ranks that still live tear down, for a moment. What they say is not a cause any more."""
        started = time.time()
        pool.ask_survivors("teardown", None, seconds=self.grace)
        over = [Answer(rank, "passed", time.monotonic()) for rank in range(self.spec.processes)]
        self.log(verdict(self.item, "teardown", over, started))


def _not_passed(reply: PhaseReply) -> bool:
    return reply.report is None or reply.report["outcome"] != "passed"
