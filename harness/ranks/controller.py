"""The parent's side of the plugin: takes the items marked ``ranks`` and gives them to the pools."""

from collections.abc import Sequence
from typing import Any

import pytest

from harness.ranks import marker
from harness.ranks.lockstep import LockstepItem
from harness.ranks.marker import RankSpec
from harness.ranks.pools import RankPools


class Controller:
    """Registered in the session that the user started (or in each xdist worker), never on a rank."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._pools: RankPools | None = None
        self._after: dict[str, str | None] = {}
        self._deselected: set[str] = set()

    @property
    def pools(self) -> RankPools:
        """The session's pools, made when first needed."""
        if self._pools is None:
            self._pools = RankPools(self._config)
        return self._pools

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if self._config.option.collectonly:
            return
        ranked = [item for item in session.items if marker.spec_of(item) is not None]
        self._after = _following(ranked)
        if ranked:
            self.pools.files = frozenset(item.path for item in ranked)
            self.pools.known = frozenset(item.nodeid for item in ranked) | self._deselected
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
        run = LockstepItem(
            item, spec, self.pools, lambda report: ihook.pytest_runtest_logreport(report=report)
        )
        run.run(self._next_of(item, spec, nextitem))
        ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        if run.exit_reason is not None:
            pytest.exit(run.exit_reason)
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

    def _close(self, *, orderly: bool) -> None:
        if self._pools is not None:
            self._pools.close(orderly=orderly)

    def _next_of(self, item: pytest.Item, spec: RankSpec, nextitem: pytest.Item | None) -> str | None:
        """What this item's pool runs next. An xdist worker runs only some of the items it collected."""
        if nextitem is None:
            return None
        if hasattr(self._config, "workerinput"):
            return nextitem.nodeid if marker.spec_of(nextitem) == spec else None
        return self._after.get(item.nodeid)


def _following(ranked: list[pytest.Item]) -> dict[str, Any]:
    """For every item, the next one that runs on the same pool."""
    after: dict[str, str | None] = {}
    upcoming: dict[RankSpec | None, str] = {}
    for item in reversed(ranked):
        spec = marker.spec_of(item)
        after[item.nodeid] = upcoming.get(spec)
        upcoming[spec] = item.nodeid
    return after
