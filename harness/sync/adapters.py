"""What PEFT puts around a model's modules, recognised by type and never by name.

A tuner layer stands in for the layer it adapts; an auxiliary wrapper (``modules_to_save``, trainable tokens)
stands in for a module of which it holds trained copies. Everything else about PEFT that the rest of the
package needs to know to read a model without touching it is here. PEFT is not imported: a model that holds
its modules has imported it already.
"""

import sys
from typing import Any

from torch.nn import Module, Parameter

from harness.sync.tree import parameters


def _peft(module: str, name: str) -> type[Any] | None:
    loaded = sys.modules.get(module)
    found = getattr(loaded, name, None)
    return found if isinstance(found, type) else None


def _is(candidate: object, module: str, name: str) -> bool:
    kind = _peft(module, name)
    return kind is not None and isinstance(candidate, kind)


def is_exactly(module: object, source: str, name: str) -> bool:
    """Whether a module's class is the one of that name, and not one derived from it."""
    return type(module) is _peft(source, name)


def is_tuner_layer(module: object) -> bool:
    """Whether a module is a PEFT layer that merges into the layer it wraps."""
    return _is(module, "peft.tuners.tuners_utils", "BaseTunerLayer")


def is_modules_to_save(module: object) -> bool:
    """Whether a module keeps a trained copy of another per adapter."""
    return _is(module, "peft.utils.other", "ModulesToSaveWrapper")


def is_trainable_tokens(module: object) -> bool:
    """Whether a module wraps an embedding of which some rows are trained."""
    return _is(module, "peft.utils.other", "TrainableTokensWrapper")


def is_param_wrapper(module: object) -> bool:
    """Whether a tuner layer adapts one parameter (``target_parameters``) rather than a layer; these nest."""
    return _is(module, "peft.tuners.lora.layer", "ParamWrapper")


def is_tuner(module: object) -> bool:
    """Whether a module is the tuner (``LoraModel`` …) between a ``PeftModel`` and the model."""
    return _is(module, "peft.tuners.tuners_utils", "BaseTuner") or _is(
        module, "peft.tuners.mixed", "MixedModel"
    )


def is_peft_model(module: object) -> bool:
    """Whether a module is the outermost wrapper that ``get_peft_model`` returns."""
    return _is(module, "peft.peft_model", "PeftModel") or _is(module, "peft.mixed_model", "PeftMixedModel")


def active_adapters(module: Module) -> list[str]:
    """Names of the adapters that a tuner layer or wrapper applies, in PEFT's order."""
    active = module.active_adapters
    return [active] if isinstance(active, str) else list(active)  # type: ignore[arg-type]


def adapters_to_merge(layer: Module) -> list[str]:
    """Active adapters that the base weight of a tuner layer does not hold yet.

    PEFT's own ``merge_and_unload`` merges what is active even inside ``disable_adapter()``; so does a sync.
    """
    merged = set(layer.merged_adapters)  # type: ignore[arg-type]
    return [name for name in active_adapters(layer) if name not in merged]


def active_parameters(layer: Module) -> list[Parameter]:
    """Parameters of the adapters that are yet to merge into a tuner layer's base."""
    names = adapters_to_merge(layer)
    found: list[Parameter] = []
    for attribute in layer.adapter_layer_names:  # type: ignore[union-attr]
        held = layer._modules.get(attribute)  # noqa: SLF001
        if held is None:
            continue
        for name in names:
            single, nested = held._parameters.get(name), held._modules.get(name)  # noqa: SLF001
            found += [single] if single is not None else []
            found += parameters(nested) if nested is not None else []
    return found


def stands_for(module: Module) -> Module | None:
    """The module an engine knows in the place of a wrapper, one level down; None without a wrapper."""
    if is_modules_to_save(module):
        active = active_adapters(module)
        children = module._modules  # noqa: SLF001  attribute access would run PEFT's delegation
        copies = children["modules_to_save"]
        assert copies is not None
        chosen = copies._modules.get(active[0]) if active else None  # noqa: SLF001
        return chosen if chosen is not None else children["original_module"]
    if is_trainable_tokens(module):
        return module._modules["token_adapter"]  # noqa: SLF001
    if is_tuner_layer(module):
        return module._modules["base_layer"]  # noqa: SLF001
    return None


def innermost(layer: Module) -> Module:
    """The module that a tuner layer finally adapts, through all nesting."""
    inner: Module | None = layer
    while inner is not None and is_tuner_layer(inner):
        layer, inner = inner, inner._modules.get("base_layer")  # noqa: SLF001
    return inner if inner is not None else layer


def depends_on_input(layer: Module, adapter: str) -> str | None:
    """Name of the LoRA variant by which an adapter's effect depends on its input; None for other adapters."""
    variant = getattr(layer, "lora_variant", {}).get(adapter)
    name = type(variant).__name__
    return name if name in ("ArrowLinearVariant", "ALoraLinearVariant") else None


def can_merge(layer: Module) -> bool:
    """Whether a tuner layer's method says how it merges into a weight."""
    base = _peft("peft.tuners.tuners_utils", "BaseTunerLayer")
    special = hasattr(type(layer), "unload_and_optionally_merge_module")
    return special or getattr(type(layer), "merge", None) is not getattr(base, "merge", None)
