"""The low-rank delta of plain LoRA, a block of rows at a time, in scratch memory that is used again.

The operations and dtypes are those of PEFT's ``get_delta_weight`` and ``merge`` (product of the factors, in
float32 for half precision on CPU; scaled; rounded to the factors' dtype; added in place), so the bits are
PEFT's. ``agrees_with_peft`` in ``rows`` holds it to that on the first block of each kind.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LowRank:
    """One adapter's delta on one weight."""

    sliced: Tensor
    """Factor that has a slice per row of the weight: ``B`` (rows first), or ``A`` (rows last) if
    ``across``."""
    whole: Tensor
    """The other factor, whole."""
    scaling: float
    """What the product is multiplied with."""
    across: bool
    """Whether the weight is stored transposed (``fan_in_fan_out``, embeddings)."""

    @property
    def exact(self) -> torch.dtype:
        """The dtype in which PEFT forms the product."""
        half = self.sliced.dtype in (torch.float16, torch.bfloat16)
        return torch.float32 if half and self.sliced.device.type == "cpu" else self.sliced.dtype


class DeltaAdder:
    """Adds the deltas of a layer's active adapters to blocks of its weight, in PEFT's order.

    Args:
        deltas: one per adapter.
        columns: length of a row.
    """

    def __init__(self, deltas: Sequence[LowRank], columns: int) -> None:
        self._deltas = [(delta, *_scaled(delta)) for delta in deltas]
        self._columns = columns
        self._scratch: dict[torch.dtype, Tensor] = {}

    @torch.no_grad()
    def add(self, block: Tensor, first: int) -> None:
        """Add to rows ``first`` on; ``block`` has shape ``(rows, columns)`` and is changed in place."""
        rows = block.shape[0]
        for delta, whole, scaling in self._deltas:
            sliced = delta.sliced.narrow(1 if delta.across else 0, first, rows).to(delta.exact)
            shape = (self._columns, rows) if delta.across else (rows, self._columns)
            product = self._space(delta.exact, shape, block)
            if delta.across:
                torch.mm(whole, sliced, out=product)
            else:
                torch.mm(sliced, whole, out=product)
            if scaling != 1.0:
                product.mul_(scaling)
            if delta.exact is not delta.sliced.dtype:
                product = self._space(delta.sliced.dtype, shape, block).copy_(product)
            block.add_(product.t() if delta.across else product)

    def _space(self, dtype: torch.dtype, shape: tuple[int, int], like: Tensor) -> Tensor:
        needed = shape[0] * shape[1]
        space = self._scratch.get(dtype)
        if space is None or space.numel() < needed:
            space = self._scratch[dtype] = torch.empty(needed, dtype=dtype, device=like.device)
        return space[:needed].view(shape)


def _scaled(delta: LowRank) -> tuple[Tensor, float]:
    """The whole factor as it enters the product, and what the product is then multiplied with.

    A power of two commutes with every rounding of float32 products and sums, whose range no factor comes near; so it
    goes into the small factor, and a pass over the product is saved.
    """
    whole = delta.whole.to(delta.exact)
    if delta.exact is torch.float32 and math.frexp(abs(delta.scaling))[0] == 0.5:
        return whole * delta.scaling, 1.0
    return whole, delta.scaling
