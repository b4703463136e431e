"""Bugs of an engine's worker: each spoils the receiver of a running worker; ``heal`` takes them all back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.transfer.receiver import Named

LEAK_BYTES = 48 << 20


def heal(receiver: Any) -> None:
    """The worker as it was."""
    vars(receiver._model).pop("load", None)  # noqa: SLF001 - what a bug was put into


def loads_nothing(receiver: Any) -> None:
    """Says that it has loaded, and has not."""
    _load_by(receiver, lambda _load, _named: None)


def loads_the_round_before(receiver: Any) -> None:
    """Each round loads what the one before it brought; the first loads nothing."""
    late: list[Named] = []

    def load(real: Callable[[Named], None], named: Named) -> None:
        if late:
            real(late.pop())
        late.append(named)

    _load_by(receiver, load)


def loads_half(receiver: Any) -> None:
    """Loads every other decoder layer of a round, and leaves the rest as the round before had it."""
    last: dict[str, Any] = {}

    def load(real: Callable[[Named], None], named: Named) -> None:
        real([(name, last.get(name, tensor) if _is_even(name) else tensor) for name, tensor in named])
        last.update(named)

    _load_by(receiver, load)


def keeps_every_round(receiver: Any) -> None:
    """Never lets go of what was staged, and of more."""
    import torch

    kept: list[torch.Tensor] = []

    def load(real: Callable[[Named], None], named: Named) -> None:
        kept.append(torch.ones(LEAK_BYTES, dtype=torch.uint8))
        real(named)

    _load_by(receiver, load)


def _load_by(receiver: Any, load: Callable[[Callable[[Named], None], Named], None]) -> None:
    model = receiver._model  # noqa: SLF001 - what the bug is put into
    real = model.load
    model.load = lambda named: load(real, named)


def _is_even(name: str) -> bool:
    numbers = [int(part) for part in name.split(".") if part.isdigit()]
    return bool(numbers) and numbers[0] % 2 == 0
