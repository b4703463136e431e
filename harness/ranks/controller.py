"""The parent's side of the plugin: takes the items marked ``ranks`` and gives them to the pools."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest

from harness.errors import UsageError
from harness.ranks import marker
from harness.ranks.attachment import attached
from harness.ranks.marker import RankSpec

if TYPE_CHECKING:
    from harness.ranks.pools import RankPools

_AUDIT = "harness_ranks_audit"


class Controller:
    """Registered in the session that the user started (or in each xdist worker), never on a rank."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._option = config.option
        self._pools: RankPools | None = None
        self._after: dict[str, str | None] = {}
        self._deselected: set[str] = set()
        self._workers_audits: list[str] = []
        self._closed = False
        if self._option.rank_pdb is not None:
            _give_up_the_terminal(config)

    @property
    def pools(self) -> "RankPools":
        """The session's pools, made when first needed: what they import is not light."""
        if self._pools is None:
            from harness.ranks.pools import RankPools

            self._pools = RankPools(self._config)
        return self._pools

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._option.collectonly:
            return
        try:
            ranked = [item for item in session.items if marker.spec_of(item) is not None]
        except UsageError as mistake:
            raise pytest.UsageError(str(mistake)) from None
        self._after = _following(ranked)
        if ranked:
            self.pools.files = frozenset(item.path for item in ranked)
            self.pools.known = frozenset(item.nodeid for item in ranked) | self._deselected
            if not all(item.get_closest_marker("skip") for item in ranked):
                self.pools.warm_up()

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        self._deselected |= {item.nodeid for item in items}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> object:
        spec = marker.spec_of(item)
        if spec is None:
            return None
        ihook = item.ihook
        ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        reports: list[pytest.TestReport] = []
        if self._option.ranks_compare and self.pools.used(spec):
            exit_reason = self._run(item, spec, self._next_of(item, spec, nextitem), reports)
            reports = self._compared(item, spec, reports)
            for report in reports:
                ihook.pytest_runtest_logreport(report=report)
        else:
            next_id = None if self._option.ranks_fresh else self._next_of(item, spec, nextitem)
            exit_reason = self._run(item, spec, next_id, _Logged(item))
            if self._option.ranks_fresh:
                self.pools.retire(spec, orderly=True)
        _tear_down_what_is_left(item, nextitem)
        ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        self.pools.make_room()
        if exit_reason is not None:
            pytest.exit(exit_reason)
        return True

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self, item: pytest.Item) -> object:
        # A true result keeps pytest-timeout's own timers away; see deadline.py.
        return True if marker.spec_of(item) is not None else None

    def pytest_sessionfinish(self) -> None:
        self._close(orderly=True)

    def pytest_keyboard_interrupt(self) -> None:
        self._close(orderly=False)

    def pytest_unconfigure(self) -> None:
        self._close(orderly=False)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = [*self._workers_audits, *(self._own_audit())]
        if lines:
            terminalreporter.write_sep("=", "left behind by tests on ranks")
            for line in lines:
                terminalreporter.write_line(line)

    def _run(
        self, item: pytest.Item, spec: RankSpec, next_id: str | None, reports: list[pytest.TestReport]
    ) -> str | None:
        from harness.ranks.lockstep import LockstepItem

        run = LockstepItem(item, spec, self.pools, reports.append)
        run.run(next_id)
        self.pools.audit.add(item.nodeid, run.leaks)
        return run.exit_reason

    def _compared(
        self, item: pytest.Item, spec: RankSpec, reused: list[pytest.TestReport]
    ) -> list[pytest.TestReport]:
        from harness.ranks import comparison

        fresh: list[pytest.TestReport] = []
        with self.pools.set_aside(spec):
            self._run(item, spec, None, fresh)
        difference = comparison.differ(item, reused, fresh)
        if difference is None:
            return reused
        around = [report for report in reused if report.when != "call" and report.passed]
        return [*around[:1], difference, *around[1:]]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        # xdist's: what a worker's session found, for the terminal of the session that has one.
        self._workers_audits += getattr(node, "workeroutput", {}).get(_AUDIT, [])

    def _close(self, *, orderly: bool) -> None:
        if self._closed:
            return
        self._closed = True
        if attached():
            _ = self.pools.launcher  # the other processes wait for the end of the session, tests or not
        if self._pools is not None:
            self._pools.close(orderly=orderly)
            if hasattr(self._config, "workeroutput"):
                self._config.workeroutput[_AUDIT] = self._own_audit()

    def _own_audit(self) -> list[str]:
        return [*self._pools.audit.lines(), *self._pools.late] if self._pools is not None else []

    def _next_of(self, item: pytest.Item, spec: RankSpec, nextitem: pytest.Item | None) -> str | None:
        """What this item's pool runs next. An xdist worker runs only some of the items it collected."""
        if nextitem is None:
            return None
        if hasattr(self._config, "workerinput"):
            return nextitem.nodeid if marker.spec_of(nextitem) == spec else None
        return self._after.get(item.nodeid)


def _give_up_the_terminal(config: pytest.Config) -> None:
    """A rank will talk to the user: capture nothing here, and keep standard input as it is."""
    if hasattr(config, "workerinput"):
        raise pytest.UsageError("--rank-pdb needs the terminal of the session itself: run it without -n")
    manager: Any = config.pluginmanager.get_plugin("capturemanager")
    manager.stop_global_capturing()
    manager._method = "no"  # noqa: SLF001 - the option is read before any plugin can change it
    manager.start_global_capturing()


class _Logged(list[pytest.TestReport]):
    """Reports as they come, each logged at once."""

    def __init__(self, item: pytest.Item) -> None:
        super().__init__()
        self._item = item

    def append(self, report: pytest.TestReport) -> None:
        super().append(report)
        self._item.ihook.pytest_runtest_logreport(report=report)


def _following(ranked: list[pytest.Item]) -> dict[str, str | None]:
    """For every item, the next one that runs on the same pool."""
    after: dict[str, str | None] = {}
    upcoming: dict[RankSpec | None, str] = {}
    for item in reversed(ranked):
        spec = marker.spec_of(item)
        after[item.nodeid] = upcoming.get(spec)
        upcoming[spec] = item.nodeid
    return after


def _tear_down_what_is_left(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Fixtures that an item in this process has left for this one, which took no part in them here.

    pytest leaves standing what the item before has in common with this one; between items on ranks nobody else would
    take it down, and the next item of another folder finds it in its way.
    """
    state = item.session._setupstate  # noqa: SLF001 - pytest tears down by item, and this item has none
    call = pytest.CallInfo.from_call(lambda: state.teardown_exact(nextitem), when="teardown")
    if call.excinfo is not None:
        report = item.ihook.pytest_runtest_makereport(item=item, call=call)
        item.ihook.pytest_runtest_logreport(report=report)
