"""How the ranks of a pool come to be: the seam between what a test is and where its processes live.

One strategy a file: ``local`` starts them on this machine, ``agents`` drives one agent per rank, wherever it
is, for ``torchrun`` (``attach``) and ``ray``. Everything above sees only the two protocols here, so verdicts
and reports are the same whoever launched the ranks.
"""

from collections.abc import Iterable
from typing import Any, Protocol

from harness.ipc import Reply
from harness.ranks.inquest import Evidence


class InFlight(Protocol):
    """A request on its way to every rank. ``harness.ipc.Call`` is one."""

    pending: set[int]
    """Ranks that owe an answer."""
    replies: dict[int, Reply]
    """What has arrived."""

    def wait(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the next answer or death."""

    def abandon(self) -> None:
        """Stop waiting; what still arrives is dropped."""


class Ranks(Protocol):
    """The processes of one pool. Whoever made it owns them and closes it."""

    def begin(self, method: str, *args: Any) -> InFlight:
        """Send a request to every rank; ``method`` is one of ``RankSession``."""

    def end(self, ranks: Iterable[int]) -> dict[int, Evidence]:
        """Question ranks that do not answer, then SIGTERM, then SIGKILL them and all that they started."""

    def output_of(self, rank: int) -> str:
        """What a rank that is gone had written since the last ``mark``."""

    def mark(self) -> None:
        """A test begins: output from before is not its own."""

    def remember_capture(self, descriptors: dict[int, tuple[int, ...]]) -> None:
        """Take hold of the files into which the ranks' pytest captures, so that they outlive the ranks."""

    def close(self, grace: float) -> None:
        """End every process, SIGKILL after ``grace`` seconds. Bounded, and harmless when repeated."""
