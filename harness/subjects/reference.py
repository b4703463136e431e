"""This package's own weight sync as subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource, bucketed, push

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.sync.subject import SyncContext


def _push(source: Any, send: Callable[[str, Any], object], seconds: float) -> int:
    """Drive a round: what fails on one rank fails on all."""
    return push(source, send, seconds=seconds)


def _to_sender(model: Any, context: SyncContext) -> SenderGatherSource:  # noqa: ARG001
    """A source of which rank 0 alone is given tensors."""
    return SenderGatherSource(model)


def module_gather(model: Any, context: SyncContext) -> ModuleGatherSource:  # noqa: ARG001 - the model says it all
    """The reference: gather, merge and yield one module at a time."""
    return ModuleGatherSource(model)


def full_gather(model: Any, context: SyncContext) -> FullGatherSource:  # noqa: ARG001
    """The reference full gather, that the others are measured against."""
    return FullGatherSource(model)


module_gather.push = full_gather.push = _push  # type: ignore[attr-defined]
module_gather.buckets = full_gather.buckets = bucketed  # type: ignore[attr-defined]
module_gather.to_sender = _to_sender  # type: ignore[attr-defined]
