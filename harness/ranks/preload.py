"""Imported by the fork server before it makes the first rank: pays for heavy imports once for all ranks.

Which modules, it reads from ``HARNESS_RANKS_PRELOAD`` (comma-separated). What is not installed is left out: a
rank that needs it will say so itself. The garbage collector is then told to leave alone all that was
imported, so that collections in the ranks stay short and do not copy the pages that they share.
"""

import contextlib
import gc
import importlib
import os

VARIABLE = "HARNESS_RANKS_PRELOAD"

_before = dict(os.environ)
for _module in filter(None, os.environ.get(VARIABLE, "").split(",")):
    with contextlib.suppress(ImportError):
        importlib.import_module(_module)
SET_BY_IMPORTS = {name: value for name, value in os.environ.items() if _before.get(name) != value}
"""Variables that the imports set: part of having imported them."""
gc.collect()
gc.freeze()
