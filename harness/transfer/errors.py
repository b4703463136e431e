"""What a transfer raises: a refusal before any weight moved, or a failure that both sides tell in the same words."""

from harness.errors import HarnessError, UsageError


class TransferRefused(UsageError):
    """The transfer cannot be right, found before the engine's weights were touched; the message says why."""


class TransferFailed(HarnessError):
    """A transfer ended early. Trainer ranks raise this with one message, and the engine's workers log the same.

    The engine goes on with the weights it had, unless the message says that it refuses to serve.
    """
