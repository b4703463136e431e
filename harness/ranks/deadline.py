"""How long one item may take: pytest-timeout's marker, option, variable or ini, else ``ranks_timeout``.

pytest-timeout ends a stuck test by a signal in its own process or by ending that process. For an item on
ranks neither is right: the parent would lose the session, and the ranks would stay. So its timers are not set
for such items, here or on the ranks, and its settings are read and kept by the parent, which ends the ranks
instead.
"""

import math
import time
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Deadline:
    """Limits of one item, in ``time.monotonic()``."""

    seconds: float
    """What was configured."""
    source: str
    """By whom: shown in the report."""
    whole: float
    """The end of the whole item; infinite when only the test function counts."""
    function_only: bool

    def of_call(self) -> float:
        """The end of the call phase, asked for when it begins."""
        return time.monotonic() + self.seconds if self.function_only else self.whole


def deadline_of(item: pytest.Item) -> Deadline:
    """The limits of an item that starts now; none while somebody debugs a rank."""
    if item.config.getoption("rank_pdb") is not None:
        return Deadline(math.inf, "--rank-pdb", math.inf, function_only=False)
    seconds, function_only, source = _pytest_timeout(item)
    if not seconds:
        seconds, function_only, source = float(item.config.getini("ranks_timeout")), False, "ranks_timeout"
    whole = math.inf if function_only else time.monotonic() + seconds
    return Deadline(seconds, source, whole, function_only)


def _pytest_timeout(item: pytest.Item) -> tuple[float, bool, str]:
    if not item.config.pluginmanager.has_plugin("timeout"):
        return 0.0, False, ""
    from pytest_timeout import _get_item_settings  # type: ignore[import-untyped]

    settings = _get_item_settings(item)
    return float(settings.timeout or 0), bool(settings.func_only), "pytest-timeout"
