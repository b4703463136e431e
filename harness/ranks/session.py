"""A rank: a pytest session of its own, driven phase by phase by the methods of this class.

The object lives in a worker of ``harness.ipc``; its parent calls ``prepare``, ``collect``, then ``setup``,
``call`` and ``teardown`` for every item, and ``finish``. The session has the parent's arguments, ini file,
root directory and named plugins, so fixtures, parametrization, capture and rewritten assertions are pytest's
own. What would write a report to the terminal or to a file stays with the parent: the session calls itself a
worker in the way of xdist (``config.workerinput``), which output plugins respect.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from _pytest.config import _prepareconfig
from _pytest.runner import call_and_report

from harness.ranks import evidence, marker, surroundings
from harness.ranks.collectives import Collective, last_recorded
from harness.ranks.group import close_group, open_group
from harness.ranks.leftovers import Leftovers
from harness.ranks.protocol import OpenProtocol
from harness.ranks.rank import Rank
from harness.ranks.settings import RankSettings
from harness.ranks.watcher import PhaseWatcher

RANK = pytest.StashKey[Rank]()


@dataclass(frozen=True)
class RankFactory:
    """Builds the session of one rank inside its worker."""

    settings: RankSettings
    ranks: tuple[int, ...]
    """Which rank each worker is."""

    def __call__(self, index: int) -> "RankSession":
        return RankSession(self.ranks[index], self.settings)


@dataclass
class PhaseReply:
    """What a rank sends back for one phase. Plain data: a serialised pytest report and what surrounds it."""

    report: dict[str, Any] | None
    """The phase's report, serialised by pytest's hook; None when this rank has no such item."""
    at: float
    """``time.monotonic()``, which all processes of a machine share, when the phase's own code ended."""
    error: str = ""
    """The exception in one line, or why there is no report."""
    collateral: bool = False
    """The exception says that a peer went away."""
    exit_reason: str | None = None
    """The test called ``pytest.exit``."""
    warnings: list[dict[str, Any]] = field(default_factory=list)
    """Arguments of ``pytest_warning_recorded``, made plain."""
    left: Leftovers = field(default_factory=Leftovers)
    """What the test left changed in the process (after teardown)."""


@dataclass(frozen=True)
class Collected:
    """What a rank collected."""

    capture: tuple[int, ...]
    """Descriptors of the files into which pytest captures standard output and error."""
    node_ids: frozenset[str]
    """Every item that is marked ``ranks``."""
    failures: dict[str, str]
    """Collectors that failed or were skipped: node id to what they said."""


class RankSession:
    """One rank's pytest session. Owned by a worker process; ends with it, or orderly with ``finish``."""

    def __init__(self, rank: int, settings: RankSettings) -> None:
        surroundings.enter(rank, settings)
        evidence.register(rank, settings)
        self.rank = rank
        self.settings = settings
        self._watcher = PhaseWatcher(settings.files)
        self._open: OpenProtocol | None = None
        self._item: pytest.Item | None = None
        self._items: dict[str, pytest.Item] = {}

    def prepare(self) -> None:
        """Configure the session, join the process group, start the session."""
        args = surroundings.arguments(self.rank, self.settings)
        self.config = _prepareconfig(args, plugins=[*self.settings.plugins, self._watcher])
        surroundings.adapt(self.config, self.rank, self.settings)
        self.session = pytest.Session.from_config(self.config)
        self.config._do_configure()  # noqa: SLF001 - what pytest's own main does, and xdist's
        surroundings.silence(self.config, self.rank, self.settings)
        rank = open_group(self.rank, self.settings)
        self.config.stash[RANK] = rank
        surroundings.narrow(self.config, self.settings)
        evidence.watch(self.rank, self.settings)
        self.config.hook.pytest_sessionstart(session=self.session)

    def collect(self) -> Collected:
        """Collect what the parent did; a module's failure is kept for the tests that it concerns."""
        self.config.hook.pytest_collection(session=self.session)
        self._items = {item.nodeid: item for item in self.session.items}
        return Collected(
            capture=surroundings.capture_descriptors(self.config),
            node_ids=frozenset(
                name for name, item in self._items.items() if marker.spec_of(item) is not None
            ),
            failures=dict(self._watcher.collection_failures),
        )

    def setup(self, node_id: str, next_id: str | None) -> PhaseReply:
        """Enter the item and set its fixtures up."""
        item = self._find(node_id)
        if item is None:
            return PhaseReply(None, time.monotonic(), error=self._why_missing(node_id))
        self._item = item
        following = self._find(next_id)
        return self._phase("setup", lambda: self._enter(item, following))

    def call(self) -> PhaseReply:
        """Run the test's own function."""
        return self._phase("call")

    def teardown(self, next_id: str | None) -> PhaseReply:
        """Tear down whatever the next item of this pool does not need, and leave the item."""
        if self._item is None:
            return PhaseReply(None, time.monotonic(), error="nothing was set up")
        reply = self._phase("teardown", nextitem=self._find(next_id))
        item, self._item = self._item, None
        if self._open is not None:
            self._open.close()
            self._open = None
        forget_request(item)
        reply.warnings += self._watcher.take_warnings()
        reply.left = self._watcher.leftovers(nothing_alive=next_id is None)
        return reply

    def last_collective(self) -> Collective | None:
        """The last collective that this rank began: asked of those that answered, when another is stuck."""
        return last_recorded()

    def finish(self) -> None:
        """End the session and leave the process group. Collective: call it on every rank at once."""
        self.config.hook.pytest_sessionfinish(session=self.session, exitstatus=self.session.exitstatus)
        self.config._ensure_unconfigure()  # noqa: SLF001 - see prepare
        close_group()

    def _enter(self, item: pytest.Item, following: pytest.Item | None) -> None:
        self._watcher.enter()
        renew_request(item)
        self._open = OpenProtocol(item, following)

    def _phase(self, when: Any, before: Callable[[], None] | None = None, **arguments: Any) -> PhaseReply:
        if self._item is None:
            return PhaseReply(None, time.monotonic(), error="no item is open on this rank")
        self._watcher.begin_phase()
        try:
            if before is not None:
                before()
            report = call_and_report(self._item, when, log=False, **arguments)
        except pytest.exit.Exception as stop:
            return PhaseReply(None, time.monotonic(), error=str(stop), exit_reason=str(stop.msg))
        data = self.config.hook.pytest_report_to_serializable(config=self.config, report=report)
        return PhaseReply(
            data,
            self._watcher.ended_at,
            error=self._watcher.error,
            collateral=self._watcher.collateral,
            warnings=self._watcher.take_warnings(),
        )

    def _find(self, node_id: str | None) -> pytest.Item | None:
        if node_id is None:
            return None
        # xdist's loadgroup appends "@group" to the ids of the items that its workers run.
        return self._items.get(node_id) or self._items.get(node_id.rpartition("@")[0])

    def _why_missing(self, node_id: str) -> str:
        module = node_id.partition("::")[0]
        said = "\n".join(
            text for where, text in self._watcher.collection_failures.items() if where.startswith(module)
        )
        reason = f"its collection says:\n{said}" if said else "it collected no such test"
        return f"rank {self.rank} cannot run {node_id}: {reason}"


def renew_request(item: pytest.Item) -> None:
    """Give an item that ran before on this rank a new fixture request, as pytest's runner does."""
    if getattr(item, "_request", None) is False:
        item._initrequest()  # type: ignore[attr-defined]  # noqa: SLF001


def forget_request(item: pytest.Item) -> None:
    """Let go of an item's fixture values, as pytest's runner does once the item is over."""
    if hasattr(item, "_request"):
        item._request = False  # noqa: SLF001
        item.funcargs = None  # type: ignore[attr-defined]
