"""Root of every test tree of this repository: what must be so before a heavy library is imported."""

import os
import sys
from pathlib import Path

import pytest

# DeepSpeed settles on one accelerator when it is imported: a session is for the one or for the other.
_on_device = any(argument == "gpu" or "tests_gpu" in argument for argument in sys.argv[1:])
os.environ.setdefault("DS_ACCELERATOR", "cuda" if _on_device and Path("/dev/nvidiactl").exists() else "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest_plugins = ["pytester"]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile DeepSpeed's op before the first test on ranks: no test's deadline is meant for a compiler.

    First of all, for the fork server of the ranks starts here too, and loads the op if it is there.
    """
    on_rank = "harness_rank" in getattr(session.config, "workerinput", {})
    if on_rank or session.config.option.collectonly:
        return
    if any(
        item.get_closest_marker("ranks") and not item.get_closest_marker("skip") for item in session.items
    ):
        from harness.conformance.deepspeed_op import ensure_built

        ensure_built()
