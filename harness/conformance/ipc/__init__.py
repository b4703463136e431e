"""Checks of worker IPC: does a pool of workers answer right, fail well, and leave nothing behind?

Every cell is acted in a process of its own (``disposable`` starts it, ``actor`` runs in it, ``trial`` is what the act
works with), so that a pool that hangs, crashes or exits ends as a verdict.
"""

CHECK_MODULES = ("test_answers", "test_failures", "test_deaths", "test_lifetime")
