"""Root of every test tree of this repository: what must be so before a heavy library is imported."""

import os

import pytest

os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest_plugins = ["pytester"]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Compile DeepSpeed's op before the first test on ranks: no test's deadline is meant for a compiler."""
    on_rank = "harness_rank" in getattr(session.config, "workerinput", {})
    if on_rank or session.config.option.collectonly:
        return
    if any(item.get_closest_marker("ranks") for item in session.items):
        from harness.conformance.deepspeed_op import ensure_built

        ensure_built()
