"""Conditions under which the fork server and the ranks are started.

``multiprocess`` runs the parent's main script again in every child, so that what the script defines can be
unpickled there. A rank needs nothing of it, and a script without the ``__main__`` guard that calls
``pytest.main()`` would start its tests again in every rank. So the main module is hidden while processes are
started.
"""

import os
import sys
import types
from collections.abc import Generator, Mapping
from contextlib import contextmanager


@contextmanager
def starting_conditions(variables: Mapping[str, str]) -> Generator[None, None, None]:
    """Set environment variables and hide ``__main__`` while the block runs."""
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
