"""Root of the CPU suite: many of its tests run a pytest of their own, as if a user had started it."""

import os
import signal

# It is nobody's xdist worker.
for _name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
    os.environ.pop(_name, None)

# Ctrl-C reaches it, though a shell that runs this suite in the background has all its children ignore that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = ("test_zoo", "test_scoreboard_of_trl", "test_ipc_checks", "test_launchers", "test_xdist", "test_hangs")
"""Files that take longest, longest first: xdist gives a worker a file at a time, and the last one should be short."""


def pytest_collection_modifyitems(items):
    place = {name: index for index, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
