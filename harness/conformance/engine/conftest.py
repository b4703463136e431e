"""The fixture of engine checks: the cell, on the one stage that a session has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.conformance.engine.stage import EngineCell, Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.conformance.plugin import CellKey


@pytest.fixture(scope="session")
def _engine_stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """The one server and the one trainer that run."""
    with Stage(tmp_path_factory.mktemp("engine")) as stage:
        yield stage


@pytest.fixture
def engine(request: pytest.FixtureRequest, _engine_stage: Stage) -> EngineCell:
    """The cell of an engine check, in the controller."""
    key: CellKey = request.param
    return EngineCell(_engine_stage, key.scenario, key.subject.load("engine"))  # type: ignore[arg-type]
