"""Where these tests run. ``HARNESS_DRY_RUN=cpu`` runs what can be run without a device, to try the tests themselves."""

import os

import pytest

DRY = os.environ.get("HARNESS_DRY_RUN") == "cpu"
DEVICE = "cpu" if DRY else "cuda"
needs_device = pytest.mark.skipif(DRY, reason="a dry run on cpu: this needs the device itself")
