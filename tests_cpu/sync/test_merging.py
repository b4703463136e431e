"""Whatever PEFT can merge, a sync yields bit for bit, and leaves the model as it was."""

import warnings

import pytest
import torch
from peft import (
    AdaLoraConfig,
    BOFTConfig,
    C3AConfig,
    FourierFTConfig,
    HRAConfig,
    IA3Config,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    RandLoraConfig,
    RoadConfig,
    ShiraConfig,
    TrainableTokensConfig,
    VBLoRAConfig,
    VeraConfig,
)
from sync_models import Mixture, Zoo, adapted, assert_untouched, assert_yields, llama, merged, move, snapshot

from harness.sync import FullGatherSource, ModuleGatherSource

SOURCES = pytest.mark.parametrize("source", [ModuleGatherSource, FullGatherSource])
LINEAR = ["q_proj", "down_proj"]

LORA = {
    "plain": {"target_modules": "all-linear"},
    "rslora": {"target_modules": "all-linear", "use_rslora": True, "lora_alpha": 3},
    "dora": {"target_modules": "all-linear", "use_dora": True},
    "rank-pattern": {"target_modules": LINEAR, "rank_pattern": {"q_proj": 2}, "alpha_pattern": {"q_proj": 5}},
    "bias-all": {"target_modules": LINEAR, "bias": "all"},
    "embedding": {"target_modules": ["embed_tokens", "q_proj"]},
    "modules-to-save": {"target_modules": LINEAR, "modules_to_save": ["lm_head", "norm"]},
    "trainable-tokens": {"target_modules": LINEAR, "trainable_token_indices": {"embed_tokens": [1, 5]}},
}

METHODS = {
    "adalora": AdaLoraConfig(target_modules=LINEAR, total_step=10),
    "boft": BOFTConfig(target_modules=["q_proj"], boft_block_size=4),
    "c3a": C3AConfig(target_modules=["q_proj"], block_size=8),
    "fourierft": FourierFTConfig(target_modules=LINEAR, n_frequency=20),
    "hra": HRAConfig(target_modules=LINEAR, r=2),
    "ia3": IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]),
    "loha": LoHaConfig(target_modules=LINEAR, r=4),
    "lokr": LoKrConfig(target_modules=LINEAR, r=4),
    "oft": OFTConfig(target_modules=LINEAR, oft_block_size=8),
    "randlora": RandLoraConfig(target_modules=LINEAR, r=4),
    "road": RoadConfig(target_modules=["q_proj"], group_size=8),
    "shira": ShiraConfig(target_modules=LINEAR, r=2),
    "tokens": TrainableTokensConfig(target_modules=["embed_tokens"], token_indices=[2, 3]),
    "vblora": VBLoRAConfig(target_modules=["q_proj"], num_vectors=8, vector_length=8, r=2),
    "vera": VeraConfig(target_modules=["q_proj", "v_proj"], r=4),
}


@SOURCES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("kind", LORA)
def test_lora(kind, dtype, source):
    model = adapted(llama(dtype=dtype), LoraConfig(r=4, **LORA[kind]))
    before, expected = snapshot(model), merged(model)
    for _ in range(2):
        assert_yields(source(model), expected)
    assert_untouched(model, before)


@SOURCES
@pytest.mark.parametrize("method", METHODS)
def test_method(method, source):
    model = adapted(llama(), METHODS[method])
    before, expected = snapshot(model), merged(model)
    assert_yields(source(model), expected)
    assert_untouched(model, before)


@SOURCES
@pytest.mark.parametrize("extra", [{}, {"use_rslora": True}, {"init_lora_weights": "gaussian"}], ids=str)
def test_every_kind_of_layer(extra, source):
    targets = ["embed", "linear", "transposed", "conv", "attention"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = adapted(Zoo(), LoraConfig(r=4, target_modules=targets, **extra))
    assert_yields(source(model), merged(model))


@SOURCES
def test_dora_on_a_transposed_weight_and_a_convolution(source):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = adapted(Zoo(), LoraConfig(r=4, target_modules=["transposed", "conv", "embed"], use_dora=True))
    assert_yields(source(model), merged(model))


@SOURCES
def test_a_trained_bias_in_the_adapter(source):
    model = adapted(Zoo(), LoraConfig(r=4, target_modules=["linear"], lora_bias=True))
    assert_yields(source(model), merged(model))


@SOURCES
def test_full_precision_adapters_on_a_half_precision_base(source):
    from peft import get_peft_model

    model = get_peft_model(llama(dtype=torch.bfloat16), LoraConfig(r=4, target_modules="all-linear"))
    move(model)
    assert model.base_model.model.lm_head.weight.dtype == torch.bfloat16
    assert_yields(source(model), merged(model))


@SOURCES
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_several_active_adapters(source, dora):
    model = adapted(llama(), LoraConfig(r=4, target_modules=LINEAR, use_dora=dora))
    model.add_adapter("second", LoraConfig(r=2, target_modules=LINEAR, use_dora=dora))
    model.base_model.set_adapter(["default", "second"])
    move(model, seed=5)
    assert_yields(source(model), merged(model))


@SOURCES
def test_a_weighted_combination(source):
    model = adapted(llama(), LoraConfig(r=4, target_modules=LINEAR))
    model.add_adapter("second", LoraConfig(r=4, target_modules=LINEAR))
    model.add_weighted_adapter(["default", "second"], [0.3, 0.7], "both", combination_type="linear")
    model.set_adapter("both")
    assert_yields(source(model), merged(model))


@SOURCES
def test_a_frozen_reference_beside_the_policy_is_not_merged(source):
    model = adapted(llama(), LoraConfig(r=4, target_modules=LINEAR), name="policy")
    alone = merged(model)
    model.add_adapter("ref", LoraConfig(r=4, target_modules=LINEAR, init_lora_weights=False))
    model.set_adapter("policy")
    assert_yields(source(model), alone)


@SOURCES
def test_disabled_adapters_are_merged_as_peft_merges_them(source):
    model = adapted(llama(), LoraConfig(r=4, target_modules=LINEAR))
    expected = merged(model)
    with model.disable_adapter():
        assert_yields(source(model), expected)


@SOURCES
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_what_is_merged_already_stays_merged(source, dora):
    model = adapted(llama(), LoraConfig(r=4, target_modules=LINEAR, use_dora=dora))
    model.merge_adapter()
    before, expected = snapshot(model), merged(model)
    assert_yields(source(model), expected)
    assert_untouched(model, before)


@SOURCES
def test_nested_wrappers_of_a_mixture_of_experts(source):
    config = LoraConfig(
        r=2, target_modules=["router"], target_parameters=["experts.gate_up_proj", "experts.down_proj"]
    )
    model = adapted(Mixture(), config)
    before, expected = snapshot(model), merged(model)
    assert_yields(source(model), expected)
    assert_untouched(model, before)


@SOURCES
def test_a_plain_model(source):
    model = llama(tied=True)
    assert_yields(source(model), merged(model))


@SOURCES
@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
def test_a_consumer_under_autocast_gets_the_same_bits(source, dora):
    model = adapted(llama(), LoraConfig(r=4, target_modules="all-linear", use_dora=dora))
    expected = merged(model)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_yields(source(model), expected)


def test_the_consumer_keeps_its_own_gradient_mode():
    model = adapted(llama(), LoraConfig(r=4, target_modules="all-linear"))
    for _ in ModuleGatherSource(model):
        assert torch.is_grad_enabled()


@SOURCES
def test_yielded_bytes_are_not_the_models(source):
    model = adapted(llama(), LoraConfig(r=4, target_modules=LINEAR))
    mine = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    for _, tensor in source(model):
        assert tensor.untyped_storage().data_ptr() not in mine
        tensor.zero_()
    assert_yields(source(model), merged(model))
