"""One pass over a model: exchange, merge and hand over unit by unit, a bounded amount ahead of the consumer.

::

    collectives   pack 0 | unit 0 | unit 1 | pack 1 | unit 2 | pack 2 | unit 3 …     same order on every rank
    consumer                          takes 0   takes 1          takes 2 …            lags by the window at
    most

A pack (small parameters of a chapter) leaves just before the last unit of the chapter before it, and overlaps
with that. The order depends on the model alone, never on time. A rank on which a merge fails goes on taking
part until the next pack has told everybody; then every rank ends the pass with the same ``SyncFailed``.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from harness.sync.budget import Budget
from harness.sync.delivery import Delivery
from harness.sync.errors import SyncFailed
from harness.sync.fetch import Fetch
from harness.sync.pack import Pack
from harness.sync.plan import Chapter, Unit
from harness.sync.sharding import Sharding
from harness.sync.verdict import Verdict

_SETTLING = 30.0  # seconds for each exchange that was on its way when a pass was given up
_SENT_AHEAD = 2  # units whose last piece a rank that only sends may have on its way
_STATUS = -1  # key of the status bytes in a pack; never an id


@dataclass(frozen=True, slots=True)
class _Step:
    """A collective, or several, in the order of the pass: a pack, or a unit."""

    pack: Chapter | None = None
    unit: Unit | None = None
    opens_chapter: bool = False


class Round(Iterator[tuple[str, Tensor]]):
    """Iterator over one pass.

    Args:
        planned: the chapters of the model, equal on every rank.
        sharding: layout of the model.
        delivery: who is given the large tensors.
        budget: what may be held.
        seconds: limit for each wait on a peer; None leaves it to the process group.
    """

    def __init__(
        self,
        planned: Sequence[Chapter],
        sharding: Sharding,
        delivery: Delivery,
        budget: Budget,
        seconds: float | None = None,
    ) -> None:
        self._sharding, self._delivery, self._budget, self._seconds = sharding, delivery, budget, seconds
        self._steps = deque(_steps(planned))
        self._packs: deque[Pack] = deque()
        self._pack = Pack({})
        self._ahead: deque[tuple[int, Fetch]] = deque()
        self._ready: deque[tuple[str, Tensor]] = deque()
        self._lent = 0
        needed = (live for chapter in planned for unit in chapter.units for live in unit.needed)
        runs = (sharding.run(live) for live in needed)
        self._verdict = Verdict(next((run for run in runs if not run.alone), None))

    @property
    def agrees(self) -> bool:
        """Whether the ranks tell each other of failures as the pass goes; not where nothing is exchanged."""
        return self._verdict.has_peers

    def fail(self, error: BaseException, place: str) -> None:
        """Say that this rank's consumer has failed; call ``next`` on, until every rank has heard of it."""
        self._verdict.fail(error, place)

    def __next__(self) -> tuple[str, Tensor]:
        """Name and value of the next tensor.

        Raises:
            SyncFailed: the pass failed on some rank, or a peer is gone or silent.
        """
        try:
            while self._verdict.failed or not self._ready:
                self._ready.clear()
                self._go_on()
                if not self._ahead:
                    raise StopIteration
                self._ready.extend(self._ahead.popleft()[1].finish(self._seconds))
        except RuntimeError as error:  # what torch.distributed raises
            self._packs.clear()
            self._abandon()
            raise SyncFailed(f"the exchange with the other ranks broke off: {error}") from error
        except SyncFailed:
            self.close()
            raise
        name, tensor = self._ready.popleft()
        self._lent = tensor.nbytes
        return name, tensor

    def close(self) -> None:
        """Give the pass up. What is on its way arrives first, so that nothing of it meets the next pass.

        Every rank closes after the same yield; with a peer that does not, the wait ends after the limit.
        """
        limit = _SETTLING if self._seconds is None else self._seconds
        on_its_way: list[Pack | Fetch] = [*self._packs, *(fetch for _, fetch in self._ahead)]
        self._packs.clear()
        self._abandon()
        for each in on_its_way:
            try:
                each.settle(limit)
            except RuntimeError:  # a peer is gone, and with it all that it would have sent
                return

    def __del__(self) -> None:
        """A loop that was left by ``break`` closes nothing by itself."""
        if hasattr(self, "_ahead"):
            self.close()

    def _abandon(self) -> None:
        self._steps.clear()
        self._ahead.clear()
        self._ready.clear()

    def _go_on(self) -> None:
        """Take the next steps that the window has room for, and at least one unit if none is on its way."""
        while self._steps:
            step = self._steps[0]
            if self._ahead and ((step.unit is None and step.pack is None) or not self._has_room(step.unit)):
                return
            self._steps.popleft()
            if step.pack is not None:
                self._send_pack(step.pack)
            elif step.unit is not None:
                if step.opens_chapter:
                    self._open_pack()
                self._ahead.append((step.unit.nbytes, self._fetch(step.unit)))
            else:
                self._send_pack(Chapter())
                self._open_pack()

    def _has_room(self, unit: Unit | None) -> bool:
        if unit is None:
            return True
        run = self._sharding.run(unit.bare[0].parameter)
        if run.alone:
            return False
        if not self._delivery.receives(run):
            return len(self._ahead) < _SENT_AHEAD
        return self._held() + unit.nbytes <= self._budget.window

    def _held(self) -> int:
        return self._lent + sum(size for size, _ in self._ahead)

    def _send_pack(self, chapter: Chapter) -> None:
        runs = {key: self._sharding.run(live) for key, live in chapter.small.items()}
        status = self._verdict.run()
        if status is not None:
            runs[_STATUS] = status
        self._packs.append(Pack(runs))

    def _open_pack(self) -> None:
        self._pack = self._packs.popleft()
        self._pack.wait(self._seconds)
        self._verdict.judge(self._pack.value(_STATUS) if _STATUS in self._pack else None)

    def _fetch(self, unit: Unit) -> Fetch:
        held = self._held() + unit.nbytes
        receives = self._delivery.receives(self._sharding.run(unit.bare[0].parameter))
        return Fetch(
            unit,
            self._pack,
            sharding=self._sharding,
            delivery=self._delivery,
            budget=self._budget,
            scratch=self._budget.scratch(held if receives else self._budget.window * 2),
            verdict=self._verdict,
        )


def _steps(planned: Sequence[Chapter]) -> list[_Step]:
    steps = [_Step(pack=planned[0])]
    for chapter, following in zip(planned, [*planned[1:], None], strict=True):
        for place, unit in enumerate(chapter.units):
            if following is not None and unit is chapter.units[-1]:
                steps.append(_Step(pack=following))
            steps.append(_Step(unit=unit, opens_chapter=place == 0))
    return [*steps, _Step()]
