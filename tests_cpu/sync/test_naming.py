"""Names are the base model's own, whatever stands around its modules and whatever the adapters are called."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peft import LoraConfig, TrainableTokensConfig
from sync_models import Mixture, adapted, llama
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from harness.sync import ModuleGatherSource

AWKWARD = [
    "policy",
    "lora_A",
    "base_layer",
    "modules_to_save",
    "original_module",
    "weight",
    "default_0",
    "model",
]


def names(model):
    return [meta.name for meta in ModuleGatherSource(model).metadata()]


@pytest.mark.parametrize("adapter", AWKWARD)
def test_an_adapter_may_have_any_name(adapter):
    base = llama()
    expected = [name for name, _ in base.named_parameters()]
    config = LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["norm", "lm_head"])
    assert names(adapted(base, config, name=adapter)) == expected


@given(name=st.from_regex(r"[a-z][a-z0-9_\- ]{0,12}", fullmatch=True))
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_an_adapter_may_have_any_generated_name(name):
    base = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    expected = [entry for entry, _ in base.named_parameters()]
    config = LoraConfig(r=2, target_modules=["0"], modules_to_save=["1"])
    try:
        model = adapted(base, config, name=name)
    except (KeyError, ValueError):  # names that PEFT or torch themselves turn down
        return
    assert names(model) == expected


class Confusing(nn.Module):
    """Modules that are called like PEFT's own."""

    def __init__(self):
        super().__init__()
        self.base_layer = nn.Linear(4, 4)
        self.modules_to_save = nn.ModuleDict({"default": nn.Linear(4, 4)})
        self.original_module = nn.Linear(4, 4)
        self.lora_gate = nn.Linear(4, 4)

    def forward(self, x):
        return x


@pytest.mark.parametrize("target", ["base_layer", "lora_gate", "original_module"])
def test_a_models_own_module_may_be_called_like_pefts(target):
    model = Confusing()
    expected = [name for name, _ in model.named_parameters()]
    assert names(model) == expected
    assert names(adapted(model, LoraConfig(r=2, target_modules=[target]))) == expected


def test_trainable_tokens_leave_no_trace():
    base = llama(tied=True)
    expected = [name for name, _ in base.named_parameters()]
    model = adapted(base, TrainableTokensConfig(target_modules=["embed_tokens"], token_indices=[1]))
    assert names(model) == expected


def test_nested_parameter_wrappers_leave_no_trace():
    base = Mixture()
    expected = [name for name, _ in base.named_parameters()]
    config = LoraConfig(r=2, target_parameters=["experts.gate_up_proj", "experts.down_proj"])
    assert names(adapted(base, config)) == expected


def test_activation_checkpointing_leaves_no_trace():
    base = llama()
    expected = [name for name, _ in base.named_parameters()]
    model = adapted(base, LoraConfig(r=2, target_modules=["q_proj"]))
    for place, layer in enumerate(base.model.layers):
        base.model.layers[place] = checkpoint_wrapper(layer)
    assert names(model) == expected


def test_compilation_leaves_no_trace():
    base = llama()
    expected = [name for name, _ in base.named_parameters()]
    model = adapted(base, LoraConfig(r=2, target_modules=["q_proj"]))
    assert names(torch.compile(model)) == expected


def test_tied_parameters_appear_once_under_their_first_name():
    assert "lm_head.weight" not in names(llama(tied=True))
    assert "lm_head.weight" in names(llama(tied=False))


def test_metadata_tells_true_sizes():
    meta = ModuleGatherSource(llama(dtype=torch.bfloat16)).metadata()[0]
    assert (meta.name, meta.shape, meta.nbytes) == ("model.embed_tokens.weight", (96, 32), 96 * 32 * 2)
