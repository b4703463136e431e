"""How the ranks of a pool come to be: the seam between what a test is and where its processes live.

One strategy a file: ``local`` starts them on this machine, ``agents`` drives one agent per rank, wherever it
is, for ``torchrun`` (``attach``) and ``ray``. Everything above sees only the two protocols here, so verdicts
and reports are the same whoever launched the ranks.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from harness.ipc import Reply
from harness.ranks.inquest import Evidence
from harness.ranks.settings import RankSettings

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]


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


class Launcher(Protocol):
    """Starts pools. One for each session."""

    host: str
    """Address at which the parent's stores listen, reachable for every rank."""
    capacity: int | None
    """The largest world size that it can give; None for no limit of its own."""
    name: str
    """For the sentence that refuses more."""

    def warm_up(self, settings: RankSettings) -> None:
        """There will be pools: begin what takes long."""

    def launch(self, settings: RankSettings, store: "Store", *, start_timeout: float) -> "Ranks":
        """Start the processes of a pool.

        Args:
            settings: What the ranks must know.
            store: The parent's store.
            start_timeout: Seconds for all processes to come up.
        """

    def close(self) -> None:
        """The session is over. Every pool has been closed."""


class Ranks(Protocol):
    """The processes of one pool. Whoever made it owns them and closes it."""

    def begin(self, method: str, *args: Any) -> InFlight:
        """Send a request to every rank; ``method`` is one of ``RankSession``."""

    def end(self, ranks: Iterable[int]) -> dict[int, Evidence]:
        """Question ranks that do not answer, then SIGTERM, then SIGKILL them and all that they started."""

    def replace_ended(self) -> None:
        """Put idle processes in the place of ended ones where the others could not be asked without them."""

    def output_of(self, rank: int) -> str:
        """What a rank that is gone had written since the last ``mark``."""

    def mark(self) -> None:
        """A test begins: output from before is not its own."""

    def remember_capture(self, descriptors: dict[int, tuple[int, ...]]) -> None:
        """Take hold of the files into which the ranks' pytest captures, so that they outlive the ranks."""

    def close(self, grace: float) -> None:
        """End every process, SIGKILL after ``grace`` seconds. Bounded, and harmless when repeated."""
