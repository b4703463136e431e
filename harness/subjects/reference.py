"""This package's own weight sync as subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.sync import FullGatherSource, ModuleGatherSource

if TYPE_CHECKING:
    from harness.conformance.sync.subject import SyncContext


def module_gather(model: Any, context: SyncContext) -> ModuleGatherSource:  # noqa: ARG001 - the model says it all
    """The reference: gather, merge and yield one module at a time."""
    return ModuleGatherSource(model)


def full_gather(model: Any, context: SyncContext) -> FullGatherSource:  # noqa: ARG001
    """The reference full gather, that the others are measured against."""
    return FullGatherSource(model)
