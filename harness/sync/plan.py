"""What a pass gathers, in which order: base parameters grouped into units, and units into chapters.

A unit is what is gathered at once: a tuner layer with all it wraps, or a single parameter. A chapter is a run
of units whose small parameters (adapters, norms, biases) travel in one pack.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torch.nn import Module, Parameter

from harness.sync.adapters import active_parameters
from harness.sync.budget import Budget
from harness.sync.naming import BareParameter
from harness.sync.rows import weight_by_rows
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
    weight: Parameter | None = None
    """The base weight, where it is merged in blocks of rows before it is exchanged; None where PEFT merges
    the whole layer after."""

    nbytes: int = 0
    """Bytes of the base parameters, whole."""
    needed: tuple[Parameter, ...] = ()
    """Every live parameter whose full value is needed, each once: the base's, then the adapters'."""


@dataclass(frozen=True, slots=True)
class Chapter:
    """Units whose small parameters travel together."""

    units: list[Unit] = field(default_factory=list)
    small: dict[int, Parameter] = field(default_factory=dict)
    """Parameters that the pack of this chapter carries, by ``id``."""


def units(bare: Iterable[BareParameter], sharding: Sharding) -> list[Unit]:
    """Units in the order of the base parameters, each of which is given once."""
    grouped: list[tuple[Module | None, list[BareParameter]]] = []
    for found in bare:
        layer = found.tuners[0] if found.tuners else None
        if layer is not None and grouped and grouped[-1][0] is layer:
            grouped[-1][1].append(found)
        else:
            grouped.append((layer, [found]))
    return [_unit(layer, tuple(members), sharding) for layer, members in grouped]


def _unit(layer: Module | None, bare: tuple[BareParameter, ...], sharding: Sharding) -> Unit:
    nbytes = sum(_nbytes(one.parameter, sharding) for one in bare)
    needed = {id(one.parameter): one.parameter for one in bare}
    if layer is None:
        return Unit(None, bare, None, nbytes, tuple(needed.values()))
    weight = weight_by_rows(layer)
    others = parameters(layer) if weight is None else active_parameters(layer)
    needed.update({id(live): live for live in others})
    return Unit(layer, bare, weight, nbytes, tuple(needed.values()))


def chapters(planned: Sequence[Unit], sharding: Sharding, budget: Budget) -> list[Chapter]:
    """Group units so that a pack stays within the budget, or carries one unit's."""
    grouped: list[Chapter] = []
    carried = 0
    for unit in planned:
        small = {id(live): live for live in unit.needed if _is_small(unit, live, sharding, budget)}
        size = sum(_nbytes(live, sharding) for live in small.values())
        if not grouped or (grouped[-1].small and carried + size > budget.pack):
            grouped.append(Chapter())
            carried = 0
        grouped[-1].units.append(unit)
        grouped[-1].small.update(small)
        carried += size
    return grouped


def _is_small(unit: Unit, live: Parameter, sharding: Sharding, budget: Budget) -> bool:
    if unit.weight is not None:
        return (
            live is not unit.weight
        )  # it is merged before it travels, and the factors must be there by then
    return _nbytes(live, sharding) <= budget.small


def _nbytes(live: Parameter, sharding: Sharding) -> int:
    return ParamMeta("", live.dtype, sharding.shape(live)).nbytes


def metadata(bare: Iterable[BareParameter], sharding: Sharding) -> list[ParamMeta]:
    """Name, dtype and full shape of base parameters, in their order."""
    return [ParamMeta(found.name, found.parameter.dtype, sharding.shape(found.parameter)) for found in bare]
