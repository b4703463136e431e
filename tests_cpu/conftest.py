"""Root of the CPU suite: many of its tests run a pytest of their own, as if a user had started it."""

import os
import signal

# It is nobody's xdist worker.
for _name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
    os.environ.pop(_name, None)

# Ctrl-C reaches it, though a shell that runs this suite in the background has all its children ignore that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
