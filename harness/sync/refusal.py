"""What cannot be synced right is refused by name, before any collective.

A refusal costs a minute; a weight that is silently wrong costs a training run.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from torch.nn import Module, Parameter

from harness.sync.adapters import (
    active_adapters,
    active_parameters,
    adapters_to_merge,
    can_merge,
    depends_on_input,
    innermost,
    is_modules_to_save,
    is_tuner,
    is_tuner_layer,
)
from harness.sync.errors import SyncRefused
from harness.sync.naming import BareParameter, base_model, peft_model, survey
from harness.sync.sharding import Sharding


def examine(model: Module, sharding: Sharding) -> list[BareParameter]:
    """Every place where a base parameter of a model appears, if a pass over it can yield the right weights.

    Raises:
        SyncRefused: the method merges into no weight, the base is quantised, the model was never given
            storage, its layout cannot be read, or an adapter sits on one half of a tied pair.
    """
    _refuse_adapter_configs(model)
    found = survey(model)
    if not found:
        raise SyncRefused(f"{type(model).__name__} has no parameters: there is nothing to sync")
    for one in found:
        _refuse_storage(one, sharding)
        for layer in one.tuners:
            _refuse_layer(one.name, layer, sharding)
    _refuse_quantised(model, found)
    _refuse_half_tied(model, found)
    return found


def _refuse_adapter_configs(model: Module) -> None:
    outer = peft_model(model)
    if outer is None:
        return
    configs = outer.peft_config
    for name in active_adapters(outer):
        config = configs.get(name)  # type: ignore[operator, union-attr]
        if config is None:
            known = ", ".join(sorted(configs))  # type: ignore[arg-type]
            raise SyncRefused(
                f"adapter {name!r} is active but the model has no adapter of that name: {known}"
            )
        if getattr(config, "is_prompt_learning", False) or getattr(config, "is_adaption_prompt", False):
            raise SyncRefused(
                f"adapter {name!r} uses {config.peft_type}, which changes inputs and not weights: there is "
                "nothing to merge into the engine's model"
            )

    tuner = outer._modules["base_model"]  # noqa: SLF001
    if is_tuner(tuner) and "model" not in tuner._modules:  # type: ignore[union-attr]  # noqa: SLF001
        raise SyncRefused(
            f"the model is adapted by {type(tuner).__name__}, which mixes adapters by the input: there is no one "
            "weight to give the engine"
        )


def _refuse_storage(found: BareParameter, sharding: Sharding) -> None:
    parameter = found.parameter
    objection = sharding.objection(parameter)
    if objection is not None:
        raise SyncRefused(f"{found.name} {objection}")
    packed = type(parameter).__name__ in ("Params4bit", "Int8Params") or hasattr(parameter, "quant_state")
    if packed or not (parameter.dtype.is_floating_point or parameter.dtype.is_complex):
        raise SyncRefused(
            f"{found.name} holds packed {parameter.dtype} values (a quantised base): an engine would read "
            "them as weights; dequantise the base model first"
        )


def _refuse_quantised(model: Module, found: Sequence[BareParameter]) -> None:
    base = base_model(model)
    method = getattr(base, "quantization_method", None)
    adapted = next((one.name for one in found if one.tuners), None)
    if method is not None and adapted is not None:
        raise SyncRefused(
            f"{adapted} is adapted and its model is quantised by {method}: what a merge yields has not the "
            "layout that the engine loads; dequantise the base model first"
        )


def _refuse_layer(name: str, layer: Module, sharding: Sharding) -> None:
    kind = f"PEFT's {type(layer).__module__.split('.')[-2]}.{type(layer).__name__}"
    if getattr(layer, "quantization_backend", None) is not None:
        raise SyncRefused(f"{name} is a quantised base under {kind}: dequantise the base model first")
    if not can_merge(layer):
        raise SyncRefused(f"{name} is adapted by {kind}, whose effect cannot be merged into a weight")
    for adapter in adapters_to_merge(layer):
        variant = depends_on_input(layer, adapter)
        if variant is not None:
            raise SyncRefused(
                f"{name} is adapted by {variant} ({adapter!r}), whose effect depends on the input and cannot be "
                "merged into a weight"
            )
        biased = getattr(layer, "lora_bias", {}).get(adapter)
        if biased and innermost(layer)._parameters.get("bias") is None:  # noqa: SLF001
            raise SyncRefused(
                f"{name}: adapter {adapter!r} trains a bias (lora_bias) and the layer it wraps has none"
            )
    for live in active_parameters(layer):
        objection = sharding.objection(live)
        if objection is not None:
            raise SyncRefused(f"an adapter of {name} {objection}")


def _refuse_half_tied(model: Module, found: Sequence[BareParameter]) -> None:
    stand_ins = _stood_in_for(base_model(model))
    count = Counter(id(one.parameter) for one in found) + Counter(
        id(original) for _, original, _ in stand_ins
    )
    places: dict[int, list[tuple[str, frozenset[int]]]] = defaultdict(list)
    for one in found:
        if count[id(one.parameter)] > 1:
            places[id(one.parameter)].append((one.name, _adapter_of(one)))
    for name, original, trained in stand_ins:
        places[id(original)].append((name, frozenset({id(trained)})))
    for tied in places.values():
        adapted = [name for name, adapter in tied if adapter]
        if adapted and len({adapter for _, adapter in tied}) > 1:
            others = ", ".join(name for name, _ in tied if name != adapted[0])
            raise SyncRefused(
                f"{adapted[0]} is adapted and tied to {others}, which is not adapted the same way: an engine "
                "ties them and would differ from the trainer; adapt both (ensure_weight_tying) or untie them"
            )


def _adapter_of(found: BareParameter) -> frozenset[int]:
    """Which adapter parameters a place depends on; two places with the same ones stay equal."""
    return frozenset(id(live) for layer in found.tuners for live in active_parameters(layer))


def _stood_in_for(module: Module, prefix: str = "") -> list[tuple[str, Parameter, Parameter]]:
    """Original parameters for which a trained copy (``modules_to_save``) stands in, with that copy."""
    if is_tuner_layer(module):
        return []
    children = module._modules  # noqa: SLF001
    if is_modules_to_save(module):
        copies, original = children["modules_to_save"], children["original_module"]
        trained = copies._modules.get((active_adapters(module) or [""])[0]) if copies else None  # noqa: SLF001
        if trained is None or original is None:
            return []
        pairs = zip(original.named_parameters(), trained.parameters(), strict=True)
        return [(prefix + name, live, copy) for (name, live), copy in pairs]
    return [
        entry
        for name, child in children.items()
        if child is not None
        for entry in _stood_in_for(child, f"{prefix}{name}.")
    ]
