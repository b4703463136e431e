"""Look at a user's subject in a process of its own: what hangs or exits on import must not take us with it."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from functools import lru_cache

from harness.errors import UsageError

DEADLINE = 120.0  # seconds: importing torch, DeepSpeed and a trainer on a slow machine takes tens
_MARK = "harness-probe:"


@lru_cache(maxsize=64)
def probe(target: str) -> str:
    """The domain of the subject ``package.module:callable``: ``ipc`` for a class with ``start`` and ``call``.

    Raises:
        UsageError: it does not import within the deadline, or is not callable; with the reason.
    """
    command = [sys.executable, "-m", "harness.subjects.probe", target]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=DEADLINE, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise UsageError(f"subject {target!r}: its module did not import within {DEADLINE:.0f} s") from None
    for line in done.stdout.splitlines():
        if line.startswith(_MARK):
            answer = json.loads(line.removeprefix(_MARK))
            if "error" in answer:
                raise UsageError(answer["error"])
            return str(answer["domain"])
    last = (done.stderr.strip().splitlines() or ["nothing on standard error"])[-1]
    raise UsageError(
        f"subject {target!r}: importing its module ended the process (exit status {done.returncode}): {last}"
    )


def main(target: str) -> None:
    """Print what ``target`` is, as one marked line of JSON."""
    from harness.subjects.registry import Subject

    try:
        loaded = Subject(target, "", {"any": target}).load("any")
    except UsageError as error:
        answer = {"error": str(error)}
    else:
        is_pool = inspect.isclass(loaded) and hasattr(loaded, "start") and hasattr(loaded, "call")
        answer = {"domain": "ipc" if is_pool else "sync"}
    print(f"\n{_MARK}{json.dumps(answer)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
