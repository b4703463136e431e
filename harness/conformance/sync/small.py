"""Small models in states that a scenario's trainer is not in, laid out as the scenario's: for refusals and adapters.

Building one takes hundredths of a second. It is cut over the ranks by the engine's own conversion and never trained.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.sync.build import DTYPE, SEED
from harness.conformance.sync.layout import write

if TYPE_CHECKING:
    from harness.conformance.sync.scenarios import SyncScenario

VOCABULARY, HIDDEN = 128, 64


def llama(scenario: SyncScenario, *, tied: bool = False) -> Any:
    """Two decoder layers, whole, on CPU, in the scenario's dtype."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).to(DTYPE[scenario.dtype])


def adapted(base: Any, config: Any, name: str = "default") -> Any:
    """A model under one adapter of which nothing is at its initial value."""
    from peft import get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT has advice about most of these set-ups
        model = get_peft_model(base, config, adapter_name=name, autocast_adapter_dtype=False)
    move(model)
    return model


def lora(**options: Any) -> Any:
    """LoRA on two projections of each layer."""
    from peft import LoraConfig

    return LoraConfig(**({"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]} | options))


def move(model: Any) -> None:
    """Change every adapter parameter, frozen ones too."""
    noise = torch.Generator().manual_seed(SEED + 2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and ("lora_" in name or parameter.requires_grad):
                shift = torch.empty(parameter.shape, dtype=torch.float32).normal_(0, 0.05, generator=noise)
                parameter.add_(shift.to(parameter.dtype))


def lay_out(model: Any, scenario: SyncScenario) -> Any:
    """Cut a whole model over the ranks as the scenario's trainer is cut; a collective, in place.

    What the engine does not take, parameters of integers, stays whole.
    """
    model.to(scenario.device)
    if scenario.uses_deepspeed:
        _zero3(model)
    elif scenario.sharding == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        packed = {p for p in model.parameters() if not p.is_floating_point()}
        fully_shard(model, reshard_after_forward=True, ignored_params=packed)
    return model


def _zero3(model: Any) -> None:
    import deepspeed

    packed = [(owner, name, p) for owner, name, p in _owned(model) if not p.is_floating_point()]
    for owner, name, _ in packed:
        owner._parameters[name] = None  # noqa: SLF001 - DeepSpeed asks every parameter for its dtype's range
    whole = {name: p.detach().clone() for name, p in model.named_parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        deepspeed.zero.Init(
            module=model,
            config_dict_or_path={
                "train_batch_size": torch.distributed.get_world_size(),
                "zero_optimization": {"stage": 3},
            },
            dtype=next(iter(whole.values())).dtype,
        )
    for name, parameter in model.named_parameters():
        write(parameter, whole[name])
    for owner, name, parameter in packed:
        owner._parameters[name] = parameter  # noqa: SLF001


def _owned(model: Any) -> list[tuple[Any, str, torch.nn.Parameter]]:
    return [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in list(module._parameters.items())  # noqa: SLF001
        if parameter is not None
    ]
