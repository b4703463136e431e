"""What a pass gathers, in which order: the base parameters of a model grouped into units.

A unit is what is gathered at once: a tuner layer with all it wraps, or a single parameter.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch.nn import Module, Parameter

from harness.sync.naming import BareParameter, bare_parameters
from harness.sync.sharding import Sharding
from harness.sync.source import ParamMeta
from harness.sync.tree import parameters


@dataclass(frozen=True, slots=True)
class Unit:
    """Base parameters that are gathered, merged and yielded together."""

    layer: Module | None
    """Outermost tuner layer around them, or None for a parameter that no adapter touches."""
    bare: tuple[BareParameter, ...]
    """The base parameters, in the order in which they are yielded."""

    def parameters(self) -> list[Parameter]:
        """Every live parameter whose value is needed, the adapters' own included, each once."""
        if self.layer is None:
            return [found.parameter for found in self.bare]
        return parameters(self.layer)


def units(model: Module) -> list[Unit]:
    """The units of a model in the order of its base parameters."""
    planned: list[Unit] = []
    for found in bare_parameters(model):
        layer = found.tuners[0] if found.tuners else None
        if layer is not None and planned and planned[-1].layer is layer:
            planned[-1] = Unit(layer, (*planned[-1].bare, found))
        else:
            planned.append(Unit(layer, (found,)))
    return planned


def metadata(planned: Sequence[Unit], sharding: Sharding) -> list[ParamMeta]:
    """Name, dtype and full shape of every base parameter in a plan, in its order."""
    return [
        ParamMeta(found.name, found.parameter.dtype, sharding.shape(found.parameter))
        for unit in planned
        for found in unit.bare
    ]
