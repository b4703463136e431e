"""Conditions under which the fork server and the ranks are started.

``multiprocess`` runs the parent's main script again in every child, so that what the script defines can be
unpickled there. A rank needs nothing of it, and a script without the ``__main__`` guard that calls
``pytest.main()`` would start its tests again in every rank. So the main module is hidden while processes are
started.
"""

import os
import sys
import types
from collections.abc import Generator
from contextlib import contextmanager

from harness.ranks import preload
from harness.ranks.settings import RankSettings


@contextmanager
def starting_conditions(settings: RankSettings) -> Generator[None, None, None]:
    """Tell the fork server what to import, and hide ``__main__``, while the block runs."""
    variables = {
        preload.MODULES: ",".join(settings.preload),
        preload.PARENT: str(os.getpid()),
        preload.PLUGINS: ",".join(settings.plugin_modules),
        "OMP_NUM_THREADS": settings.environ.get("OMP_NUM_THREADS", "1"),
        "DS_ACCELERATOR": settings.environ.get("DS_ACCELERATOR", "cpu"),
    }
    before = {name: os.environ.get(name) for name in variables}
    main = sys.modules["__main__"]
    os.environ.update(variables)
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
