"""The models of the scenarios, before any adapter: small, random-initialised, each with a trait that syncs trip over.

Small enough to build in a fraction of a second; large enough that the whole model is several times its largest
tensor, so that a full gather and a module-wise one cannot be confused.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY, HIDDEN, INTERMEDIATE, LAYERS, HEADS = 4096, 256, 512, 6, 4
EXPERTS, CHANNELS = 4, 96


def llama(*, tied: bool = False) -> Any:
    """A decoder of bias-free linear layers, 6 untied layers: 6.0 M parameters, 5.7 times its largest tensor."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INTERMEDIATE,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=64,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


def tied_llama() -> Any:
    """The same, whose head shares the embedding's weight."""
    return llama(tied=True)


def gpt2() -> Any:
    """``Conv1D`` layers, which store their weight transposed, with biases; tied."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=HIDDEN,
        n_layer=4,
        n_head=HEADS,
        n_positions=64,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    return GPT2LMHeadModel(config)


def mixture() -> Any:
    """A mixture of experts whose weights are stacked in one parameter each, so that PEFT's wrappers nest."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN // 2,
        intermediate_size=HIDDEN // 2,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        max_position_embeddings=64,
    )
    return MixtralForCausalLM(config)


class ConvNet(nn.Module):
    """Convolutions over embedded tokens, with a norm that keeps buffers: not a transformer, and no config."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 64)
        widths = (16, CHANNELS, CHANNELS, CHANNELS, CHANNELS)
        self.convs = nn.ModuleList(
            [nn.Conv2d(inner, outer, 3, padding=1) for inner, outer in pairwise(widths)]
        )
        self.norm = nn.BatchNorm2d(CHANNELS)
        self.head = nn.Linear(CHANNELS, 1024)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor | None = None, **_: Any) -> Any:
        """Logits and, with labels, the loss of predicting each modulo the head's width."""
        from transformers.modeling_outputs import CausalLMOutput

        seen = self.embed(input_ids).view(input_ids.shape[0], 16, 4, -1)
        for conv in self.convs:
            seen = torch.relu(conv(seen))
        logits = self.head(self.norm(seen).mean((2, 3)))
        loss = (
            None if labels is None else nn.functional.cross_entropy(logits, labels[:, 0] % logits.shape[-1])
        )
        return CausalLMOutput(loss=loss, logits=logits)


BUILDERS: dict[str, Callable[[], Any]] = {
    "llama": llama,
    "tiedllama": tied_llama,
    "gpt2": gpt2,
    "moe": mixture,
    "convnet": ConvNet,
}


def tokens(device: torch.device) -> torch.Tensor:
    """A fixed batch, shape ``(2, 12)``."""
    return (torch.arange(24, device=device).view(2, 12) * 331 + 1) % VOCABULARY
