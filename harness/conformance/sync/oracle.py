"""What the engine should be served: PEFT's own ``merge_and_unload`` of the unsharded twin, and how far off is right.

PEFT merges in the model's dtype: the delta is rounded, then the sum. A subject that merges in float64 and rounds once
is nearer to the truth and must pass too, so a value is judged by its distance from the exact merge, computed in
float64, against a bound that has room for two roundings.
"""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.sync.build import unsharded
from harness.conformance.sync.coding import code

if TYPE_CHECKING:
    from harness.conformance.sync.scenarios import SyncScenario


class Exact:
    """The merge of a model in float64, made when it is first asked for: a value with PEFT's own bits needs none.

    Args:
        model: unsharded; it is not changed by anyone afterwards.
    """

    def __init__(self, model: Any) -> None:
        self._model = model

    @cached_property
    def values(self) -> dict[str, torch.Tensor]:
        """By the engine's name."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            merged = deepcopy(self._model).double().merge_and_unload()
        return {name: value.detach() for name, value in merged.named_parameters()}


@dataclass(frozen=True)
class Target:
    """One tensor that the engine should receive.

    Attributes:
        name: the engine's.
        merged: PEFT's result, in the model's dtype, full shape.
        base: the weight without the adapter, in the model's dtype.
        adapted: whether the adapter changes it.
        model: the same merges in float64.
    """

    name: str
    merged: torch.Tensor
    base: torch.Tensor
    adapted: bool
    model: Exact

    @property
    def exact(self) -> torch.Tensor:
        """The same merge in float64."""
        return self.model.values[self.name]

    def bound(self) -> torch.Tensor:
        """Largest distance from ``exact`` that rounding explains, element by element.

        Four units in the last place of the larger of the operands and the result: one for rounding the delta, one
        for the sum, and as much again for norms and scales that are themselves rounded (DoRA).
        """
        eps = torch.finfo(self.merged.dtype).eps
        base = self.base.double()
        delta = (self.exact - base).abs().max()
        return 4 * eps * (self.exact.abs() + base.abs() + delta)

    def error(self, value: torch.Tensor) -> float:
        """How wrong a value is: 0.0 for PEFT's own bits, at most 1.0 for what rounding explains.

        Else the largest distance from the exact merge in units of the bound.
        """
        own = value.detach().cpu()
        if own.dtype == self.merged.dtype and torch.equal(own, self.merged):
            return 0.0
        distance = (own.double() - self.exact).abs()
        ratio = distance / self.bound().clamp_min(torch.finfo(torch.float64).tiny)
        worst = float(ratio.max())
        return float("inf") if worst != worst else worst  # noqa: PLR0124 - NaN is as wrong as can be

    def accepts(self, value: torch.Tensor) -> bool:
        """Whether a value has the right shape and is right up to rounding."""
        return value.shape == self.merged.shape and self.error(value) <= 1.0

    def is_unmerged(self, value: torch.Tensor) -> bool:
        """Whether ``value`` is the base weight, where a merged one was due."""
        return self.adapted and torch.equal(value.detach().cpu(), self.base)


@lru_cache(maxsize=2)
def targets(scenario: SyncScenario) -> dict[str, Target]:
    """Every tensor that the engine should receive, by the engine's name, in the order of the model's parameters."""
    return merge(_whole(scenario))


@lru_cache(maxsize=1)
def coded_targets(scenario: SyncScenario, turn: int) -> dict[str, Target]:
    """The same when every parameter of the trainer holds its code of a round."""
    model = deepcopy(_whole(scenario))
    for name, parameter in model.named_parameters():
        parameter.data.copy_(code(name, tuple(parameter.shape), turn, scenario.world_size))
    return merge(model)


@lru_cache(maxsize=2)
def _whole(scenario: SyncScenario) -> Any:
    """The twin of the trainer's model, whole, on CPU; nobody changes it."""
    return unsharded(scenario).cpu()


def merge(model: Any) -> dict[str, Target]:
    """What an engine should receive of an unsharded model with adapters, by PEFT's own merge of a copy of it.

    Args:
        model: it is not changed, and must not be afterwards.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT warns of what is merged already
        merged = deepcopy(model).merge_and_unload()
    base = {_plain(name): value.detach() for name, value in model.named_parameters()}
    exact = Exact(model)
    return {
        name: Target(name, value.detach(), base[name], not torch.equal(value, base[name]), exact)
        for name, value in merged.named_parameters()
    }


def _plain(name: str) -> str:
    """The name that a parameter of the base had before PEFT wrapped it."""
    kept = [
        part for part in name.split(".") if part not in {"base_layer", "original_module", "token_adapter"}
    ]
    return ".".join(kept).removeprefix("base_model.model.")


def sizes(scenario: SyncScenario) -> dict[str, int]:
    """Bytes of every tensor that the engine should receive, by name."""
    return {name: target.merged.nbytes for name, target in targets(scenario).items()}
