"""Root of the CPU suite: many of its tests run a pytest of their own, as if a user had started it."""

import json
import os
import signal
import subprocess
import sys

import pytest

# It is nobody's xdist worker.
for _name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT", "PYTEST_XDIST_TESTRUNUID"):
    os.environ.pop(_name, None)

# Ctrl-C reaches it, though a shell that runs this suite in the background has all its children ignore that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONG = ("test_zoo", "test_ipc_checks", "test_hangs", "test_scoreboard_of_trl", "test_launchers", "test_xdist")
"""Files that take longest come first, those that compute beside those that wait: xdist gives a worker a file at a time,
and the last one should be short."""

VISIT = """
import json, sys
from harness.conformance.plan import Request
from harness.conformance.record import record
from harness.conformance.run import run
asked = tuple(map(tuple, json.loads(sys.argv[1])))
cells = run(Request((), cells=asked, device="cpu"), lambda _: None, lambda _: None)
print(json.dumps(record(cells, {})["cells"]))
"""


@pytest.fixture(scope="session")
def judged():
    """Runs exactly the cells that are asked for, (subject, check, scenario), and gives the record's entries by them."""

    def run(asked, timeout):
        command = [sys.executable, "-c", VISIT, json.dumps(list(dict.fromkeys(asked)))]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, done.stdout + done.stderr
        cells = json.loads(done.stdout.splitlines()[-1])
        return {(cell["subject"], cell["check"], cell["scenario"]): cell for cell in cells}

    return run


def pytest_collection_modifyitems(items):
    place = {name: index for index, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))
