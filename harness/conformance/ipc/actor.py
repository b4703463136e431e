"""The disposable process: performs one act on one subject and notes what it finds. Started by ``disposable``.

Its only argument is a JSON object: ``subject`` (``package.module:class``), ``scenario``, ``act``
(``package.module:function``) and ``notes`` (the file to write to).
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import time
import traceback
from typing import Any

from harness.conformance.verdict import NotApplicable, Violation


class Notes:
    """A file of JSON lines, each written at once and whole."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._begun = time.monotonic()

    def write(self, **said: Any) -> None:
        """One line: what is said, with the time since the start in seconds."""
        at = round(time.monotonic() - self._begun, 3)
        os.write(self._file, (json.dumps({"at": at, **said}, default=str) + "\n").encode())


def load(target: str) -> Any:
    """What ``package.module:attribute`` names."""
    module, _, attribute = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def main(arguments: dict[str, str]) -> None:
    """Perform, and note the end: ``done``, ``violation``, ``not_applicable`` or ``error``."""
    from harness.conformance.ipc.trial import Trial

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    sys.path.insert(0, os.getcwd())  # noqa: PTH109 - where the user's own subject is imported from
    notes = Notes(arguments["notes"])
    try:
        trial = Trial(load(arguments["subject"]), arguments["scenario"], notes.write)
        load(arguments["act"])(trial)
    except Violation as violation:
        notes.write(violation={"kind": str(violation.kind), "message": violation.message})
    except NotApplicable as reason:
        notes.write(not_applicable=str(reason))
    except BaseException:
        notes.write(error=traceback.format_exc())
        raise
    else:
        notes.write(done=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
