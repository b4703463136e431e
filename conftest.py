"""Root of every test tree of this repository: what must be set before a heavy library is imported."""

import os

os.environ.setdefault("DS_ACCELERATOR", "cpu" if not os.environ.get("HARNESS_GPU") else "cuda")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

pytest_plugins = ["pytester"]
