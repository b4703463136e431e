"""Hooks that this package adds to pytest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from harness.conformance.verdict import Cell


@pytest.hookspec
def pytest_harness_cell(cell: Cell) -> None:
    """A cell of the scoreboard is finished; called in the controller, in the order in which cells end."""
