"""Messages of fixed size, so that an agreement is one collective whatever is said."""

from __future__ import annotations

import torch

BLOCK = 1024
"""Bytes of a message; longer ones are cut."""


def as_block(text: str | None) -> torch.Tensor:
    """A message as ``uint8``, shape ``(BLOCK,)``; all zero for None."""
    data = (text or "").encode(errors="replace")[:BLOCK]
    return torch.frombuffer(bytearray(data.ljust(BLOCK, b"\0")), dtype=torch.uint8)


def first_text(blocks: list[torch.Tensor]) -> str | None:
    """The first message that is not empty; None when all are."""
    texts = (bytes(block.tolist()).rstrip(b"\0").decode(errors="replace") for block in blocks)
    return next((text for text in texts if text), None)


def empty_blocks(count: int) -> list[torch.Tensor]:
    """Room for one message of each member."""
    return [torch.empty(BLOCK, dtype=torch.uint8) for _ in range(count)]


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, without the rest of a native stack."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
