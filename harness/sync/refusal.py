"""What cannot be synced right is refused by name, before any collective.

A refusal costs a minute; a weight that is silently wrong costs a training run.
"""

from torch.nn import Module, Parameter

from harness.sync.adapters import (
    active_adapters,
    adapters_to_merge,
    can_merge,
    innermost,
    is_modules_to_save,
    is_tuner_layer,
)
from harness.sync.errors import SyncRefused
from harness.sync.naming import BareParameter, base_model, occurrences, peft_model


def refuse_unsyncable(model: Module) -> None:
    """Raise if a pass over the model could not yield the right weights.

    Raises:
        SyncRefused: the method merges into no weight, the base is quantised, the model was never given
            storage, or an adapter sits on one half of a tied pair.
    """
    if not isinstance(model, Module):
        raise SyncRefused(f"expected a torch.nn.Module to read weights from, got {type(model).__name__}")
    _refuse_prompt_methods(model)
    found = list(occurrences(base_model(model)))
    if not found:
        raise SyncRefused(f"{type(model).__name__} has no parameters: there is nothing to sync")
    for one in found:
        _refuse_storage(one)
        for layer in one.tuners:
            _refuse_method(one.name, layer)
    _refuse_half_tied(model, found)


def _refuse_prompt_methods(model: Module) -> None:
    outer = peft_model(model)
    if outer is None:
        return
    for name in active_adapters(outer):
        config = outer.peft_config.get(name)  # type: ignore[operator, union-attr]
        if config is not None and getattr(config, "is_prompt_learning", False):
            raise SyncRefused(
                f"adapter {name!r} uses {config.peft_type}, which changes inputs and not weights: there is "
                "nothing to merge into the engine's model"
            )


def _refuse_storage(found: BareParameter) -> None:
    parameter = found.parameter
    if parameter.is_meta and not hasattr(parameter, "ds_shape"):
        raise SyncRefused(f"{found.name} is on the meta device: load its weights before a sync")
    if not (parameter.dtype.is_floating_point or parameter.dtype.is_complex):
        raise SyncRefused(
            f"{found.name} holds packed {parameter.dtype} values (a quantised base): an engine would read "
            "them as weights; dequantise the base model first"
        )


def _refuse_method(name: str, layer: Module) -> None:
    kind = f"{type(layer).__module__.rpartition('.')[0].rpartition('.')[2]}.{type(layer).__name__}"
    if getattr(layer, "quantization_backend", None) is not None:
        raise SyncRefused(f"{name} is a quantised base under {kind}: dequantise the base model first")
    if not can_merge(layer):
        raise SyncRefused(f"{name} is adapted by {kind}, whose effect cannot be merged into a weight")
    for adapter in adapters_to_merge(layer):
        variant = getattr(layer, "lora_variant", {}).get(adapter)
        if type(variant).__name__ in ("ArrowLinearVariant", "ALoraLinearVariant"):
            raise SyncRefused(
                f"{name} is adapted by {type(variant).__name__} ({adapter!r}), which depends on the input "
                "and cannot be merged into a weight"
            )
        biased = getattr(layer, "lora_bias", {}).get(adapter)
        if biased and innermost(layer)._parameters.get("bias") is None:  # noqa: SLF001
            raise SyncRefused(
                f"{name}: adapter {adapter!r} trains a bias (lora_bias) and the layer it wraps has none"
            )


def _refuse_half_tied(model: Module, found: list[BareParameter]) -> None:
    places: dict[int, list[tuple[str, frozenset[int]]]] = {}
    for one in found:
        places.setdefault(id(one.parameter), []).append((one.name, _adapter_of(one)))
    for name, original in _replaced(base_model(model)):
        places.setdefault(id(original), []).append((name, frozenset({-1})))
    for tied in places.values():
        adapted = [name for name, adapter in tied if adapter]
        if adapted and len({adapter for _, adapter in tied}) > 1:
            others = [name for name, _ in tied if name not in adapted[:1]]
            raise SyncRefused(
                f"{adapted[0]} is adapted and tied to {', '.join(others)}, which is not adapted the same "
                "way: an engine ties them and would differ from the trainer; adapt both "
                "(ensure_weight_tying) or untie them"
            )


def _adapter_of(found: BareParameter) -> frozenset[int]:
    """Which adapter parameters a place depends on; two places with the same ones stay equal."""
    used: set[int] = set()
    for layer in found.tuners:
        names = adapters_to_merge(layer)
        for attribute in layer.adapter_layer_names:  # type: ignore[union-attr]
            held = layer._modules.get(attribute)  # noqa: SLF001
            if held is not None:
                entries = {**held._parameters, **held._modules}  # noqa: SLF001
                used |= {id(entries[name]) for name in names if name in entries}
    return frozenset(used)


def _replaced(module: Module, prefix: str = "") -> list[tuple[str, Parameter]]:
    """Original parameters that a trained copy (``modules_to_save``) stands in for."""
    if is_modules_to_save(module):
        if not active_adapters(module):
            return []
        original = module._modules["original_module"]  # noqa: SLF001
        return [(prefix + name, live) for name, live in original.named_parameters()]  # type: ignore[union-attr]
    if is_tuner_layer(module):
        return []
    replaced: list[tuple[str, Parameter]] = []
    for name, child in module._modules.items():  # noqa: SLF001
        if child is not None:
            replaced += _replaced(child, f"{prefix}{name}.")
    return replaced
