"""One engine worker's end of a transfer, whatever the engine: receive aside, agree, and only then load.

The engine's weights are not touched until every worker holds every byte, has checked that its model takes them, and
has heard the trainer's decision. What fails before that costs nothing but the time; the engine serves on. What fails
in the loading itself leaves weights that are neither old nor new, and the engine must not serve them.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

import torch

from harness.transfer.errors import TransferFailed
from harness.transfer.manifest import Manifest
from harness.transfer.meeting import join
from harness.transfer.orders import Connect, Head, Update, hear
from harness.transfer.stream import Staging

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.transfer.channel import Channel

logger = logging.getLogger(__name__)

Named = list[tuple[str, torch.Tensor]]


class Model(Protocol):
    """What a transfer needs of the engine's model on this worker."""

    def rehearse(self, named: Named) -> None:
        """Raise if the model does not take exactly these tensors; leave its weights alone."""
        ...

    def load(self, named: Named) -> None:
        """Replace the weights by these."""
        ...

    def refuse(self, reason: str | None) -> None:
        """Answer every request with this error from now on; None lifts that."""
        ...


class Receiver:
    """Receives for one model.

    No method raises for a failure that the trainer hears of through the channel: the failure is returned, so that
    the engine's own control plane, whose replies one raising worker may shift, is not needed to carry it.

    Args:
        model: what is loaded into.
        rank: of this worker in a transfer's group, from 1.
    """

    def __init__(self, model: Model, rank: int) -> None:
        self._model, self._rank = model, rank
        self._channel: Channel | None = None
        self._checked: Manifest | None = None
        self._decided: Named | None = None
        self.is_open = False
        self.version: str | None = None
        """What the trainer calls the weights that are being served; None for those of the start."""
        self._coming = ""

    def connect(self, order: Connect) -> None:
        """Meet the trainer; whatever an earlier transfer left undecided is dropped.

        Raises:
            TransferFailed: the trainer is not there, or another worker is not.
        """
        self.close()
        self._channel = join(order, self._rank, left_open=self.is_open)

    def start(self) -> None:
        """An update begins."""
        self._decided, self.is_open = None, True

    def receive(self, order: Update) -> str | None:
        """Take part in a broadcast until it is decided. Returns what failed, anywhere; None when all is well."""
        self._decided, self._coming = None, order.version
        channel = self._channel
        try:
            if channel is None:
                raise TransferFailed("no trainer is connected: init_weight_transfer_engine comes first")
            self._decided = self._receive(channel, order)
        except Exception as error:  # noqa: BLE001 - whatever it is, the engine lives on
            failure = str(error) if isinstance(error, TransferFailed) else self._told(error)
            logger.warning("weights %s were not received: %s", order.version, failure)
            self._leave(channel, failure)
            return failure
        return None

    def _receive(self, channel: Channel, order: Update) -> Named:
        manifest = Manifest.from_json(order.manifest)
        staging = Staging(manifest)
        while True:
            head, nbytes = hear(channel)
            failure: str | None = None
            if head is Head.CHUNK:
                chunk = torch.empty(nbytes, dtype=torch.uint8)
                channel.broadcast(chunk)
                failure = self._attempt(partial(self._place, staging, chunk))
            elif head is Head.DONE:
                failure = self._attempt(partial(self._rehearse, staging, manifest))
            said = channel.agree(failure)
            if said is not None:
                raise TransferFailed(said)
            if head is Head.COMMIT:
                return staging.tensors()

    def _place(self, staging: Staging, chunk: torch.Tensor) -> None:
        staging.place(chunk)

    def _rehearse(self, staging: Staging, manifest: Manifest) -> None:
        """Once per manifest: what the model took in one round it takes in the next."""
        named = staging.tensors()
        if manifest != self._checked:
            self._model.rehearse(named)
            self._checked = manifest

    def _attempt(self, step: Callable[[], None]) -> str | None:
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the model's loading code may raise anything
            return self._told(error)
        return None

    def finish(self) -> str | None:
        """End the update: load what was decided, if anything. Returns what failed, on any worker."""
        decided, self._decided, self.is_open = self._decided, None, False
        channel = self._channel
        if decided is None or channel is None:
            return None
        failure: str | None = None
        try:
            self._model.load(decided)
        except Exception as error:  # noqa: BLE001 - the model's loading code may raise anything
            failure = f"{self._told(error)}: it refuses to serve until a transfer succeeds"
        try:
            said = channel.agree(failure)
        except TransferFailed as error:
            said = f"{error}: the weights of the other workers are unknown"
        if said is None:
            self.version = self._coming
        else:
            self._leave(channel, said)
        self._model.refuse(said)
        return said

    def close(self, reason: str | None = None) -> None:
        """Leave the trainer, and drop what it had not decided; members that still wait hear the reason."""
        self._leave(self._channel, reason)

    def _leave(self, channel: Channel | None, reason: str | None) -> None:
        """Close a channel; one that a trainer has opened since is none of this one's business."""
        if self._channel is channel:
            self._channel = self._decided = None
        if channel is not None:
            channel.close(reason)

    def _told(self, error: BaseException) -> str:
        return f"engine worker {self._rank - 1}: {type(error).__name__}: {error}"
