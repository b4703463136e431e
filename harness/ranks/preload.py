"""Imported by the fork server before it makes the first rank: pays for heavy imports once for all ranks.

Which modules, it reads from ``HARNESS_RANKS_PRELOAD`` (comma-separated). What is not installed is left out: a rank
that needs it will say so itself. The garbage collector is then told to leave alone all that was imported, so that
collections in the ranks stay short and do not copy the pages that they share.
"""

import contextlib
import gc
import importlib
import os

VARIABLE = "HARNESS_RANKS_PRELOAD"

for _module in filter(None, os.environ.get(VARIABLE, "").split(",")):
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
gc.collect()
gc.freeze()
