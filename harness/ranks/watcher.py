"""Observes one rank's session: how and when a phase ended, warnings, failed collectors, leftovers."""

import re
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from harness.ranks.leftovers import Fingerprint, Leftovers, sticky_device_error

_PEER_WENT_AWAY = re.compile(
    r"connection (closed|reset) by peer|broken pipe|connection was likely closed|remote process exited"
    r"|connection refused|peer closed|socket ?timeout",
    re.IGNORECASE,
)

_HARMLESS = {"rank", "pytestconfig", "tmp_path_factory"}
"""Fixtures of a wide scope that change nothing."""


class PhaseWatcher:
    """A plugin of the rank's session."""

    def __init__(self, files: frozenset[Path]) -> None:
        self.collection_failures: dict[str, str] = {}
        self._files = files
        self._warnings: list[dict[str, Any]] = []
        self._pristine: Fingerprint | None = None
        self._before: Fingerprint | None = None
        self._after: Fingerprint | None = None
        """Taken when the item before had ended: nothing of ours runs between two items."""
        self._wider_fixtures = False
        self.begin_phase()

    def enter(self) -> None:
        """An item begins."""
        self._before = self._after or Fingerprint.take()
        self._after = None
        self._pristine = self._pristine or self._before
        self._wider_fixtures = False

    def begin_phase(self) -> None:
        """A phase begins: forget the one before."""
        self.ended_at = time.monotonic()
        self.error = ""
        self.collateral = False

    def take_warnings(self) -> list[dict[str, Any]]:
        """Warnings recorded since the last time."""
        taken, self._warnings = self._warnings, []
        return taken

    def leftovers(self, *, nothing_alive: bool) -> Leftovers:
        """What the item left changed.

        Args:
            nothing_alive: Every fixture has been torn down, so the state must be that before the first item.
                Else it must be that before this item, unless fixtures of a wider scope came or went with it.
        """
        found = Leftovers()
        self._after = Fingerprint.take()
        if not self._wider_fixtures and self._before is not None:
            found = self._after.since(self._before)
        if nothing_alive and self._pristine is not None:
            found = self._after.since_all(self._pristine, found)
        broken = sticky_device_error()
        if broken:
            found.changes.append(broken)
        return found

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        # What holds no tests on ranks need not be imported here; packages and conftest files must.
        if (
            not self._files
            or collection_path.suffix != ".py"
            or collection_path.name in {"__init__.py", "conftest.py"}
        ):
            return None
        return None if collection_path in self._files else True

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        self._note(fixturedef)
        return (yield)

    def pytest_fixture_post_finalizer(self, fixturedef: Any) -> None:
        self._note(fixturedef)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        # Before the report is made, which may take long: the first to fail is the cause.
        self.ended_at = time.monotonic()
        if call.excinfo is not None:
            self.error = call.excinfo.exconly(tryshort=True)
            self.collateral = isinstance(call.excinfo.value, Exception) and bool(
                _PEER_WENT_AWAY.search(self.error)
            )
        return (yield)

    def _note(self, fixturedef: Any) -> None:
        self._wider_fixtures |= fixturedef.scope != "function" and fixturedef.argname not in _HARMLESS

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_timeout_set_timer(self) -> bool:
        return True  # keeps pytest-timeout's own timers away: the parent ends ranks at the deadline

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self.collection_failures[report.nodeid] = report.longreprtext or report.outcome

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        if when != "runtest":
            return  # the parent configured and collected the same, and was warned
        category = warning_message.category
        self._warnings.append(
            {
                "module": category.__module__,
                "category": category.__qualname__,
                "message": str(warning_message.message),
                "filename": warning_message.filename,
                "lineno": warning_message.lineno,
                "when": when,
                "nodeid": nodeid,
                "location": location,
            }
        )
