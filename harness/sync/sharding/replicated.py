"""Every rank holds every parameter whole: a plain model, or one inside DDP."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Parameter


class Replicated:
    """Nothing to exchange; a gather is a copy."""

    name = "replicated"

    def shape(self, parameter: Parameter) -> tuple[int, ...]:
        """Full shape of a parameter; no collective."""
        return tuple(parameter.shape)

    def gather(self, parameters: Sequence[Parameter]) -> list[Tensor]:
        """Copies of the parameters."""
        return [parameter.detach().clone(memory_format=torch.contiguous_format) for parameter in parameters]
