"""Observes one rank's session: when a phase's own code ended and how, warnings, failed collectors, leftovers."""

import re
import time
import warnings
from collections.abc import Generator
from typing import Any

import pytest

_PEER_WENT_AWAY = re.compile(
    r"connection (closed|reset) by peer|broken pipe|connection was likely closed|remote process exited"
    r"|connection refused|peer closed|Socket ?Timeout",
    re.IGNORECASE,
)


class PhaseWatcher:
    """A plugin of the rank's session. ``begin`` forgets the phase before."""

    def __init__(self) -> None:
        self.collection_failures: dict[str, str] = {}
        self.baseline: dict[str, Any] = {}
        self.begin()
        self._warnings: list[dict[str, Any]] = []

    def begin(self) -> None:
        """A phase begins."""
        self.ended_at = time.monotonic()
        self.error = ""
        self.collateral = False

    def take_warnings(self) -> list[dict[str, Any]]:
        """Warnings recorded since the last time."""
        taken, self._warnings = self._warnings, []
        return taken

    def changes(self, *, nothing_alive: bool) -> list[str]:
        """What differs from the state before any test, where no fixture can still be the reason."""
        return [] if nothing_alive else []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
        # Before the report is made: rewriting a large assertion takes time, and the first rank to fail is the cause.
        self.ended_at = time.monotonic()
        if call.excinfo is not None:
            self.error = call.excinfo.exconly(tryshort=True)
            self.collateral = isinstance(call.excinfo.value, Exception) and bool(
                _PEER_WENT_AWAY.search(self.error)
            )
        return (yield)

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
