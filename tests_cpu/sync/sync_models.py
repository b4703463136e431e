"""Small models, their adapters, and the oracle that a sync is held to."""

from __future__ import annotations

import copy
import warnings

import torch
from torch import nn


def llama(*, layers=2, tied=False, dtype=torch.float32, hidden=32, vocabulary=96, seed=0):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=hidden * 5 // 2,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config).to(dtype)


class Zoo(nn.Module):
    """One of each layer that LoRA adapts, a buffer, and a norm that nothing adapts."""

    def __init__(self):
        super().__init__()
        from transformers.pytorch_utils import Conv1D

        self.embed = nn.Embedding(90, 24)
        self.linear = nn.Linear(24, 80)
        self.transposed = Conv1D(80, 24)
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.attention = nn.MultiheadAttention(24, 2)

    def forward(self, x):
        return x


class Experts(nn.Module):
    """The part of a mixture of experts that PEFT adapts by parameter: two stacks of matrices."""

    def __init__(self, experts=4, width=16):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.1)
        self.down_proj = nn.Parameter(torch.randn(experts, width, width) * 0.1)

    def forward(self, x):
        return x


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.experts = Experts()

    def forward(self, x):
        return self.experts(self.router(x))


def adapted(model, config, name="default", **kwargs):
    """The model under one adapter whose every trainable parameter has moved off its initial value."""
    from peft import get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(model, config, adapter_name=name, autocast_adapter_dtype=False, **kwargs)
    move(model)
    return model


def move(model, seed=1):
    """Change every trainable parameter, as an optimizer step would."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.add_(torch.randn(parameter.shape, generator=noise).to(parameter.dtype) * 0.05)


def merged(model):
    """Names and values that a sync must yield: PEFT's own merge of a copy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        twin = copy.deepcopy(model)
        whole = twin.merge_and_unload() if hasattr(twin, "merge_and_unload") else twin
    return [(name, parameter.detach().clone()) for name, parameter in whole.named_parameters()]


def assert_yields(source, expected):
    """The metadata, the names, their order and every bit."""
    announced = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    found = list(source)
    assert [name for name, _ in found] == [name for name, _ in expected]
    assert announced == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in found]
    differing = [
        name for (name, got), (_, want) in zip(found, expected, strict=True) if not same_bits(got, want)
    ]
    assert not differing, f"{len(differing)} of {len(expected)} tensors differ, first {differing[:3]}"


def same_bits(got, want):
    return got.dtype == want.dtype and torch.equal(
        got.reshape(-1).view(torch.uint8), want.reshape(-1).view(torch.uint8)
    )


def snapshot(model):
    """Everything of a model that a sync must leave alone."""
    state = {
        name: (tensor.data_ptr(), tensor.requires_grad, tensor.detach().clone())
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    books = {
        name: (list(module.merged_adapters), set(getattr(module, "_caches", ())), module.active_adapters)
        for name, module in model.named_modules()
        if hasattr(module, "merged_adapters")
    }
    return state, books


def assert_untouched(model, before):
    state, books = snapshot(model)
    assert books == before[1]
    assert state.keys() == before[0].keys()
    for name, (pointer, trains, value) in state.items():
        old = before[0][name]
        assert (pointer, trains) == old[:2], name
        assert same_bits(value, old[2]), name
