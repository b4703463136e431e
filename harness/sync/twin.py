"""A disposable copy of a module tree with gathered tensors in the place of its parameters.

PEFT merges in place. Run on the live model that would do arithmetic on base bytes, and under ZeRO-3 with one
rank on the optimizer's own partition. So a merge runs on a twin: the same classes and attributes, its own
bookkeeping (``merged_adapters``, caches), and parameters that belong to whoever asked for it. The live module
is only read.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.nn import Module, Parameter


def twin(module: Module, tensors: Mapping[int, Tensor]) -> Module:
    """Copy a module tree around given tensors.

    Args:
        module: root of the tree; not changed, no hook of it runs.
        tensors: full tensor for each parameter of the tree, by ``id(parameter)``. The copy takes them over.

    Returns:
        A module of the same class. Modules and parameters that are shared in the tree are shared in the copy.
    """
    return _copy_module(module, tensors, {}, {})


def _copy_module(
    module: Module,
    tensors: Mapping[int, Tensor],
    modules: dict[int, Module],
    parameters: dict[int, Parameter],
) -> Module:
    known = modules.get(id(module))
    if known is not None:
        return known
    copy: Module = object.__new__(module.__class__)  # not the class's own, which FSDP2 replaces
    modules[id(module)] = copy
    state = {name: _copy_attribute(name, value) for name, value in module.__dict__.items()}
    state["_parameters"] = {
        name: None if live is None else _copy_parameter(live, tensors, parameters)
        for name, live in module._parameters.items()  # noqa: SLF001
    }
    state["_buffers"] = dict(module._buffers)  # noqa: SLF001
    state["_modules"] = {
        name: None if child is None else _copy_module(child, tensors, modules, parameters)
        for name, child in module._modules.items()  # noqa: SLF001
    }
    copy.__dict__.update(state)
    return copy


def _copy_parameter(
    live: Parameter, tensors: Mapping[int, Tensor], parameters: dict[int, Parameter]
) -> Parameter:
    if id(live) not in parameters:
        parameters[id(live)] = Parameter(tensors[id(live)], requires_grad=False)
    return parameters[id(live)]


def _copy_attribute(name: str, value: Any) -> Any:
    if name.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called")):
        return OrderedDict()
    if type(value) in (dict, list, set, OrderedDict, defaultdict):
        return value.copy()
    return value
