"""Walks over a module tree that run none of its code.

``Module.modules`` and ``Module.parameters`` may be overridden (PEFT's ``MultiheadAttention`` re-registers
parameters in ``named_modules``), and reading an attribute may gather (ZeRO-3) or delegate (PEFT's wrappers).
These read the dictionaries of ``torch.nn.Module`` alone.
"""

from collections.abc import Iterator

from torch.nn import Module, Parameter


def modules(root: Module) -> Iterator[Module]:
    """Every module of a tree once, parents first."""
    seen: set[int] = set()
    stack = [root]
    while stack:
        module = stack.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            stack.extend(child for child in reversed(module._modules.values()) if child is not None)  # noqa: SLF001


def parameters(root: Module) -> list[Parameter]:
    """Every parameter of a tree once, tied ones too, parents first."""
    found: dict[int, Parameter] = {}
    for module in modules(root):
        for parameter in module._parameters.values():  # noqa: SLF001
            if parameter is not None:
                found.setdefault(id(parameter), parameter)
    return list(found.values())
