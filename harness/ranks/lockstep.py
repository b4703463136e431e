"""Run one item on all ranks of a pool, phase by phase, and report it as if it had run here."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from harness.ranks.answer import Answer
from harness.ranks.availability import unavailable
from harness.ranks.deadline import Deadline, deadline_of
from harness.ranks.launch import InFlight
from harness.ranks.marker import RankSpec
from harness.ranks.pool import PoolNotStarted, RankPool, Round
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
        reason = _skip_mark(self.item) or unavailable(self.spec)
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
        """Setup, call, teardown. Where every rank passed one, the next begins while the report is made."""
        reader = Reader(self.item, pool, self.grace, f"{deadline.seconds:g} s ({deadline.source})")
        pool.ranks.mark()
        called, closing = None, None
        setting_up = self._begin(pool, "setup", self.item.nodeid, next_id)
        setup = self._gather(pool, setting_up, deadline.whole)
        only_setup = self.item.config.getoption("setuponly", False)
        if not only_setup and setup.all_passed(self.spec.processes):
            called = self._begin(pool, "call")
        if self._report(reader, setup).passed and not only_setup:
            call = self._gather(pool, called or self._begin(pool, "call"), deadline.of_call())
            if call.all_passed(self.spec.processes) and not self._stopping:
                closing = self._begin(pool, "teardown", next_id)
            self._report(reader, call)
        if self._broken:
            self._clean_up(pool)
            return
        if self.failed or self._stopping:
            next_id = None  # this pool ends, or the session does: what lives must be torn down now
        limit = deadline.whole
        if self.failed:
            limit = min(max(limit, time.monotonic() + self.grace), time.monotonic() + _CLEAN_UP_S)
        self._report(reader, self._gather(pool, closing or self._begin(pool, "teardown", next_id), limit))

    @property
    def _stopping(self) -> bool:
        return bool(self.item.session.shouldfail or self.item.session.shouldstop)

    def _begin(self, pool: RankPool, when: When, *args: Any) -> "_Phase":
        return _Phase(when, time.time(), pool.ranks.begin(when, *args))

    def _gather(self, pool: RankPool, phase: "_Phase", limit: float) -> "_Phase":
        phase.answered = pool.gather(phase.request, limit, self.grace, failing=_not_passed)
        phase.ended = time.time()
        return phase

    def _report(self, reader: Reader, phase: "_Phase") -> pytest.TestReport:
        answers = reader.read(phase.answered, phase.when)
        for answer in answers:
            self.exit_reason = self.exit_reason or answer.exit_reason
            self.changes += [f"rank {answer.rank}: {change}" for change in answer.changes]
            self.leaks += [f"rank {answer.rank}: {leak}" for leak in answer.leaks]
        self._broken = self._broken or not all(answer.usable for answer in answers)
        report = verdict(self.item, phase.when, answers, phase.started, phase.ended)
        if report.passed and self.leaks and self.item.config.getoption("ranks_audit") == "fail":
            report = complaint(self.item, phase.when, "the test left behind\n" + "\n".join(self.leaks))
        self.failed = self.failed or report.failed
        self.log(report)
        return report

    def _clean_up(self, pool: RankPool) -> None:
        """Let the ranks that still live tear down, for a moment. What they say is not a cause any more."""
        started = time.time()
        pool.ask_survivors("teardown", None, seconds=self.grace)
        over = [Answer(rank, "passed", time.monotonic()) for rank in range(self.spec.processes)]
        self.log(verdict(self.item, "teardown", over, started, time.time()))


@dataclass
class _Phase:
    """One phase on all ranks: on its way, then over."""

    when: When
    started: float
    """``time.time()``."""
    request: InFlight
    answered: Round = field(default_factory=Round)
    ended: float = 0.0

    def all_passed(self, size: int) -> bool:
        """Whether every rank says so plainly; then nothing in the report can change what comes next."""
        replies = self.answered.values.values()
        return len(replies) == size and not any(
            _not_passed(reply) or "wasxfail" in reply.report for reply in replies
        )


def _skip_mark(item: pytest.Item) -> str | None:
    """The reason of an unconditional ``skip`` mark: all ranks would say the same. A ``skipif`` is theirs to judge."""
    mark = item.get_closest_marker("skip")
    if mark is None:
        return None
    return str(mark.kwargs.get("reason") or (mark.args[0] if mark.args else "unconditional skip"))


def _not_passed(reply: PhaseReply) -> bool:
    return reply.report is None or reply.report["outcome"] != "passed"
