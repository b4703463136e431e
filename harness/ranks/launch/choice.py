"""Which launcher a session uses."""

from harness.ranks.attachment import attached
from harness.ranks.launch import Launcher
from harness.ranks.launch.attach import AttachLauncher
from harness.ranks.launch.local import LocalLauncher

NAMES = ("local", "ray")


def launcher_for(name: str) -> Launcher:
    """The launcher that the option names; under torchrun, its processes.

    Raises:
        MissingLibrary: Ray is asked for and not installed.
    """
    if name == "ray":
        from harness.ranks.launch.rays import RayLauncher

        return RayLauncher()
    return AttachLauncher() if attached() else LocalLauncher()
