"""Engine names for the parameters of a wrapped model, read off its structure.

A name is the path of a parameter in the model as it was before DDP, PEFT or activation checkpointing wrapped
it. The walk decides by the type of each module it meets, so an adapter, a layer or a parameter may be called
anything at all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch.nn import Module, Parameter

from harness.sync.adapters import is_peft_model, is_tuner, is_tuner_layer, stands_for

# Wrappers that hold nothing but the module they wrap, by the one name torch gives that child.
_SHELLS = ("_checkpoint_wrapped_module", "_orig_mod")


@dataclass(frozen=True, slots=True)
class BareParameter:
    """One parameter of the base model, where the wrappers left it."""

    name: str
    """Path in the base model."""
    parameter: Parameter
    """The live parameter; it may be a shard or a placeholder of one."""
    tuners: tuple[Module, ...]
    """Tuner layers around it, outermost first."""


def base_model(model: Module) -> Module:
    """The model inside the wrappers that stand at the root: an engine, DDP, ``PeftModel``, a tuner."""
    while True:
        inner = _root_child(model)
        if inner is None:
            return model
        model = inner


def peft_model(model: Module) -> Module | None:
    """The ``PeftModel`` at the root of a model, inside an engine or DDP; None without one."""
    inner: Module | None = model
    while inner is not None and not is_peft_model(inner):
        inner = _root_child(inner)
    return inner


def _root_child(model: Module) -> Module | None:
    children = model._modules  # noqa: SLF001
    kind = {cls.__name__ for cls in type(model).__mro__}
    if kind & {"DistributedDataParallel", "DeepSpeedEngine"}:
        return children["module"]
    if is_peft_model(model):
        return children["base_model"]
    if is_tuner(model):
        return children["model"]
    return _shell_child(model)


def _shell_child(module: Module) -> Module | None:
    children = module._modules  # noqa: SLF001
    return next((children[name] for name in _SHELLS if name in children), None)


def survey(model: Module) -> list[BareParameter]:
    """Every place where a base parameter appears, of a model as ``get_peft_model`` or an engine left it."""
    return list(occurrences(base_model(model)))


def occurrences(module: Module, prefix: str = "", tuners: tuple[Module, ...] = ()) -> Iterator[BareParameter]:
    """Every place where a base parameter appears, tied ones once per place, in the base model's own order."""
    inner = stands_for(module)
    if inner is not None:
        within = (*tuners, module) if is_tuner_layer(module) else tuners
        yield from occurrences(inner, prefix, within)
        return
    shell = _shell_child(module)
    if shell is not None:
        yield from occurrences(shell, prefix, tuners)
        return
    # ``items`` only: ZeRO-3's parameter dictionary gathers on subscription after an aborted forward.
    for name, parameter in module._parameters.items():  # noqa: SLF001
        if parameter is not None:
            yield BareParameter(prefix + name, parameter, tuners)
    for name, child in module._modules.items():  # noqa: SLF001
        if child is not None:
            yield from occurrences(child, f"{prefix}{name}.", tuners)


def each_once(found: Iterable[BareParameter]) -> list[BareParameter]:
    """Every parameter under the first of its names, as the base model's ``named_parameters`` would."""
    first: dict[int, BareParameter] = {}
    for one in found:
        first.setdefault(id(one.parameter), one)
    return list(first.values())
