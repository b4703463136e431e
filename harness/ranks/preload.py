"""Imported by the fork server before it makes the first rank: pays for slow imports once for all ranks.

Two lists come by the environment, comma-separated, with the parent's process id: the modules that
``ranks_preload`` names, and the pytest plugins that the parent has loaded from installed distributions, which are
imported as pytest would, assertions rewritten. What cannot be imported is left out: a rank that needs it will say so
itself. The garbage collector is then told to leave alone all that was imported, so that collections in the ranks stay
short and copy no shared pages.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import sys

import pytest
from _pytest.assertion import install_importhook
from _pytest.config import get_config

_PR_SET_PDEATHSIG = 1
PARENT = "HARNESS_RANKS_PARENT"
MODULES = "HARNESS_RANKS_PRELOAD"
PLUGINS = "HARNESS_RANKS_PLUGINS"


def plugin_modules(config: pytest.Config) -> list[str]:
    """Names of the plugin modules that a session has loaded from installed distributions."""
    named = (getattr(plugin, "__name__", "") for plugin, _ in config.pluginmanager.list_plugin_distinfo())
    return sorted({name for name in named if name})


def _listed(variable: str) -> list[str]:
    return [name for name in os.environ.get(variable, "").split(",") if name]


def _import_all(names: list[str]) -> None:
    for name in names:
        # Whatever a module raises must not end the server; the rank that imports it will report it.
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def _import_rewritten(names: list[str]) -> None:
    """Import plugins under pytest's own import hook; a rank's hook then finds them done."""
    names = [name for name in names if name.partition(".")[0] not in sys.modules]
    if not names:
        return
    hook = install_importhook(get_config([]))
    hook.mark_rewrite(*{name.partition(".")[0] for name in names})
    try:
        _import_all(names)
    finally:
        sys.meta_path.remove(hook)


def _end_with_parent(number: int) -> None:
    """Which signal this process gets when its parent ends; 0 for none. Linux only: elsewhere the server lives on."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
        if number and os.getppid() != int(os.environ[PARENT]):  # it ended before we asked
            os.kill(os.getpid(), number)


_before = dict(os.environ)
_serving = bool(_listed(MODULES) or _listed(PLUGINS))
if _serving:  # while it imports, the server does not look at the pipe that tells it of its parent's end
    _end_with_parent(signal.SIGKILL)
_import_all(_listed(MODULES))
_import_rewritten(_listed(PLUGINS))
SET_BY_IMPORTS = {name: value for name, value in os.environ.items() if _before.get(name) != value}
"""Variables that the imports set: part of having imported them."""
if _serving:
    _end_with_parent(0)
    gc.collect()
    gc.freeze()
