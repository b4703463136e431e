"""The trainer's end of a transfer: any weight source, on any number of ranks, into every worker of one engine.

::

    all ranks     declared, engine ready? ── agree ── iterate in lockstep ── agree ─────────────────── agree
    rank 0        connect, start                     chunk, agree with the engine …   commit, pause, finish, resume
    engine        serves the old weights ……………………………………………………………………………………… loads      serves the new

Until ``finish`` the engine's weights are untouched. Whatever fails, every rank raises ``TransferFailed`` with the
same message, and the next ``sync`` starts afresh: it meets the engine anew and closes what was left open there.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError
from harness.transfer.background import Background
from harness.transfer.errors import TransferFailed
from harness.transfer.manifest import Manifest, Source
from harness.transfer.meeting import Meeting
from harness.transfer.orders import Head, Update, announce
from harness.transfer.peers import Alone, Peers
from harness.transfer.stream import CHUNK_BYTES, chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from harness.transfer.channel import Channel
    from harness.transfer.control import EngineControl


@dataclass(frozen=True)
class Sent:
    """What one transfer moved."""

    version: str
    tensors: int
    nbytes: int
    chunks: int
    seconds: float
    """From the call until the engine serves again."""


class TrainerEngine:
    """Sends a source's weights to an engine, again and again. Made, and used, on every trainer rank alike.

    Args:
        source: what to send.
        engine: the engine's control plane; used on rank 0 only.
        peers: the trainer's ranks; a single one when None.
        seconds: limit of every wait on the engine. A source that offers ``begin(seconds)`` gets it for its waits
            too; the collectives of any other source have the limit of their own process group.
        chunk_bytes: what is packed and sent at once.
        address: IP address of rank 0 that the engine's workers can reach; nothing listens on another.
    """

    def __init__(
        self,
        source: Source,
        engine: EngineControl,
        *,
        peers: Peers | None = None,
        seconds: float = 60.0,
        chunk_bytes: int = CHUNK_BYTES,
        address: str = "127.0.0.1",
    ) -> None:
        if chunk_bytes < 1 or seconds <= 0:
            raise UsageError(f"chunk_bytes and seconds must be positive, got {chunk_bytes} and {seconds}")
        self._source, self._engine, self._peers = source, engine, peers or Alone()
        self._seconds, self._chunk_bytes, self._address = seconds, chunk_bytes, address
        self._channel: Channel | None = None
        self._meeting: Meeting | None = None
        self._call: Background | None = None
        self._engine_listens = False
        self._sent_chunks = 0

    def sync(self, version: str) -> Sent | None:
        """One transfer. Collective over the trainer's ranks.

        Args:
            version: what the engine shall call these weights from now on.

        Returns:
            What was moved, on rank 0; None elsewhere.

        Raises:
            TransferFailed: on every rank, with the same message. The engine serves what it served before, unless
                the message says that it is paused or refuses to serve.
        """
        begun = time.monotonic()
        leads = self._peers.rank == 0
        self._sent_chunks = 0
        try:
            manifest = self._declare(version if leads else None)
            self._agree(self._attempt(lambda: self._stream(manifest) if leads else self._follow()))
            self._agree(self._attempt(lambda: self._commit(version)) if leads else None)
        except TransferFailed as error:
            self._break_off(str(error))
            raise
        if not leads:
            return None
        return Sent(
            version,
            len(manifest.entries),
            manifest.nbytes,
            self._sent_chunks,
            time.monotonic() - begun,
        )

    def close(self) -> None:
        """Leave the engine, which keeps its weights."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._meeting = None

    def _declare(self, version: str | None) -> Manifest:
        found: list[Manifest] = []

        def declare() -> None:
            found.append(Manifest.of(self._source.metadata()))
            if version is not None:
                self._open(found[0], version)

        self._agree(self._attempt(declare))
        return found[0]

    def _attempt(self, step: Callable[[], None]) -> str | None:
        """Take a step of the protocol; what it raised, as the sentence that every member will hear."""
        try:
            step()
        except TransferFailed as error:
            return str(error)
        except Exception as error:  # noqa: BLE001 - the source is the user's code
            return f"trainer rank {self._peers.rank}: {type(error).__name__}: {error}"
        return None

    def _agree(self, failure: str | None) -> None:
        said = self._peers.agree(failure)
        if said is not None:
            raise TransferFailed(said)

    def _pass(self) -> Iterator[tuple[str, torch.Tensor]]:
        begin: Callable[[float], Iterator[tuple[str, torch.Tensor]]] | None
        begin = getattr(self._source, "begin", None)
        return iter(self._source) if begin is None else begin(self._seconds)

    def _open(self, manifest: Manifest, version: str) -> None:
        """Meet the engine if need be, and have its workers listen."""
        if self._channel is None:
            meeting = self._meeting = Meeting(
                self._engine.workers() + 1, address=self._address, seconds=self._seconds
            )
            call = Background(lambda: self._engine.connect(asdict(meeting.order)), "connect")
            self._channel, left_open = meeting.gather(call.check)
            call.join(self._seconds)
            if left_open:
                self._engine.finish()
        self._engine.start()
        order = asdict(Update(manifest.to_json(), version))
        self._call = Background(lambda: self._engine.update(order), "update")
        self._channel.alarm = self._call.check
        self._engine_listens = True

    def _stream(self, manifest: Manifest) -> None:
        passing = self._pass()
        try:
            for chunk in chunks(passing, manifest, self._chunk_bytes):
                self._tell(Head.CHUNK, chunk)
                self._sent_chunks += 1
            self._tell(Head.DONE)
        except BaseException as error:
            _let_peers_end(passing, error)
            raise

    def _follow(self) -> None:
        """Iterate beside rank 0, which alone sends."""
        passing = self._pass()
        try:
            _exhaust(passing)
        except BaseException as error:
            _let_peers_end(passing, error)
            raise

    def _tell(self, head: Head, payload: torch.Tensor | None = None) -> None:
        """Say what follows, send it, and hear whether every worker is well."""
        assert self._channel is not None
        try:
            announce(self._channel, head, 0 if payload is None else payload.numel())
            if payload is not None:
                self._channel.broadcast(payload)
            said = self._channel.agree(None)
        except TransferFailed:
            self._engine_listens = False
            raise
        if said is not None:
            self._engine_listens = False
            raise TransferFailed(said)

    def _commit(self, version: str) -> None:
        assert self._channel is not None
        assert self._call is not None
        self._tell(Head.COMMIT)
        self._engine_listens = False
        self._call.join(self._seconds)
        try:
            self._engine.pause()
        except TransferFailed as error:
            self._engine.resume()
            raise TransferFailed(f"the engine did not pause, and keeps its weights: {error}") from error
        try:
            self._call = Background(self._engine.finish, "finish")
            self._channel.alarm = self._call.check
            said = self._channel.agree(None)
            self._call.join(self._seconds)
            if said is not None:
                raise TransferFailed(said)
            self._engine.name_version(version)
            self._engine.resume()
        except TransferFailed as error:
            raise TransferFailed(f"{error} (the engine stays paused until a transfer succeeds)") from error

    def _break_off(self, message: str) -> None:
        """Tell the engine, if it still listens, in the words that every rank raises; then leave it."""
        channel = self._channel
        if channel is not None and self._engine_listens:
            with contextlib.suppress(TransferFailed):
                announce(channel, Head.ABORT)
                channel.agree(message)
        self._engine_listens = False
        if channel is not None:
            channel.close(message)
        self.close()


def _exhaust(passing: Iterator[Any]) -> None:
    for _ in passing:
        pass


def _let_peers_end(passing: Iterator[Any], error: BaseException) -> None:
    """The other ranks iterate in lockstep: take part until they have heard of the failure, or have ended."""
    fail: Callable[[BaseException, str], None] | None = getattr(passing, "fail", None)
    with contextlib.suppress(Exception):
        if fail is not None:
            fail(error, "the transfer to the engine")
        _exhaust(passing)
