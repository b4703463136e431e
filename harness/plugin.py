"""The pytest entry point: options, markers and fixtures come from the packages named here; no logic of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from harness.memory import Measurement

pytest_plugins = ["harness.ranks.plugin", "harness.conformance.plugin"]


@pytest.fixture
def memory() -> Callable[..., AbstractContextManager[Measurement]]:
    """Hand out ``harness.memory.measure``, which measures peak and retained bytes of a block."""
    from harness.memory import measure

    return measure
