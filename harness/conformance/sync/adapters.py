"""The adapters of the scenarios: which a model can carry, and how PEFT is asked for them."""

from __future__ import annotations

from typing import Any

LINEAR: dict[str, list[str] | str] = {
    "llama": "all-linear",
    "tiedllama": "all-linear",
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "moe": ["q_proj", "v_proj"],
    "convnet": ["embed", "convs.0", "convs.2", "convs.3", "head"],
}
SMALLER = ["convs.0", "convs.2", "convs.3", "head"]
"""Without the embedding, the model's largest tensor: PEFT merges DoRA whole and holds five times the tensor, so nobody
who lets PEFT merge keeps the bound of ``sync/peak`` there. ``tests_cpu/sync`` has the values of DoRA on embeddings."""
NORM = {
    "llama": "model.norm",
    "tiedllama": "model.norm",
    "gpt2": "transformer.ln_f",
    "moe": "model.norm",
    "convnet": "norm",
}
CARRIES = {
    "llama": ("lora", "policy", "dora", "rslora", "two", "tokens", "ia3", "loha"),
    "tiedllama": ("lora", "policy", "dora", "two", "tokens", "ia3"),
    "gpt2": ("lora", "policy", "dora", "rslora", "bias", "ia3"),
    "moe": ("lora", "policy", "rslora"),
    "convnet": ("lora", "policy", "dora", "two", "bias", "loha"),
}
"""The adapters that PEFT 0.21 can put on each model and merge again."""


def adapt(base: Any, model: str, adapter: str, *, exact: bool) -> Any:
    """Wrap a model with a scenario's adapter; its parameters are still at PEFT's initial values.

    Args:
        base: the model, whole.
        model: its name in the scenario.
        adapter: the adapter's name in the scenario.
        exact: keep adapters in the base's dtype instead of PEFT's float32.
    """
    from peft import get_peft_model

    name = "policy" if adapter == "policy" else "default"
    wrapped = get_peft_model(
        base, _config(model, adapter), adapter_name=name, autocast_adapter_dtype=not exact
    )
    if adapter == "two":
        second = _lora(model, r=4, lora_alpha=12)
        wrapped.add_adapter("second", second, autocast_adapter_dtype=not exact)
        wrapped.add_adapter("ref", _lora(model, r=2), autocast_adapter_dtype=not exact)
        wrapped.base_model.set_adapter(["default", "second"])
    return wrapped


def _config(model: str, adapter: str) -> Any:
    from peft import IA3Config, LoHaConfig

    if adapter == "ia3":
        fed = ["mlp.c_proj"] if model == "gpt2" else ["down_proj"]
        kept = ["c_attn"] if model == "gpt2" else ["k_proj", "v_proj"]
        return IA3Config(target_modules=kept + fed, feedforward_modules=fed)
    if adapter == "loha":
        where = ["convs.1", "convs.2", "head"] if model == "convnet" else ["q_proj", "o_proj", "up_proj"]
        return LoHaConfig(r=4, alpha=8, target_modules=where)
    options: dict[str, dict[str, Any]] = {
        "policy": {"modules_to_save": [NORM[model]]},
        "dora": {"use_dora": True} | ({"target_modules": SMALLER} if model == "convnet" else {}),
        "rslora": {
            "use_rslora": True,
            "rank_pattern": {"q_proj": 4, "c_attn": 4},
            "alpha_pattern": {"v_proj": 5, "c_fc": 5},
        },
        "bias": {"bias": "all", "lora_bias": model == "gpt2"},
        "tokens": {"trainable_token_indices": [1, 5, 77]},
    }
    return _lora(model, **options.get(adapter, {}))


def _lora(model: str, **options: Any) -> Any:
    from peft import LoraConfig

    if model == "moe":
        options["target_parameters"] = ["experts.gate_up_proj", "experts.down_proj"]
    return LoraConfig(**({"r": 8, "lora_alpha": 16, "target_modules": LINEAR[model]} | options))
