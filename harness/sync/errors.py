"""What a sync raises: a refusal before anything moved, or a failure that every rank hears of."""

from harness.errors import HarnessError, UsageError


class SyncRefused(UsageError):
    """The model cannot be synced right, found before any collective; the message says where."""


class SyncFailed(HarnessError):
    """A sync ended early: the model is whole, every rank raised this, and the next round starts afresh."""
