"""What cannot be right is refused by name, at the door."""

import warnings

import pytest
import torch
from peft import (
    AdaptionPromptConfig,
    LoraConfig,
    PolyConfig,
    PromptTuningConfig,
    TrainableTokensConfig,
    XLoraConfig,
    get_peft_model,
)
from sync_models import adapted, assert_yields, llama, merged
from torch import nn

from harness.errors import UsageError
from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource, SyncRefused

SOURCES = pytest.mark.parametrize("source", [ModuleGatherSource, FullGatherSource, SenderGatherSource])


def quietly(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return make()


@SOURCES
def test_a_packed_base(source):
    model = llama()
    packed = nn.Parameter(torch.zeros(8, 8, dtype=torch.uint8), requires_grad=False)
    model.model.layers[0].self_attn.q_proj.weight = packed
    with pytest.raises(SyncRefused, match=r"layers\.0\.self_attn\.q_proj\.weight holds packed torch\.uint8"):
        source(model)


@SOURCES
def test_adapters_on_a_model_that_says_it_is_quantised(source):
    base = llama()
    base.quantization_method = "bitsandbytes"
    with pytest.raises(SyncRefused, match="quantised by bitsandbytes"):
        source(adapted(base, LoraConfig(target_modules=["q_proj"])))


@SOURCES
def test_prompts_instead_of_weights(source):
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    with pytest.raises(SyncRefused, match="changes inputs and not weights"):
        source(get_peft_model(llama(), config))


@SOURCES
def test_a_bias_with_nowhere_to_go(source):
    model = quietly(
        lambda: adapted(
            nn.Sequential(nn.Linear(4, 4, bias=False)), LoraConfig(target_modules=["0"], lora_bias=True)
        )
    )
    with pytest.raises(SyncRefused, match="trains a bias"):
        source(model)


@SOURCES
def test_an_effect_that_depends_on_the_input(source):
    config = LoraConfig(target_modules=["q_proj"], alora_invocation_tokens=[1], task_type="CAUSAL_LM")
    with pytest.raises(SyncRefused, match="depends on the input"):
        source(quietly(lambda: adapted(llama(), config)))


@SOURCES
@pytest.mark.parametrize("half", ["embed_tokens", "lm_head"])
def test_one_half_of_a_tied_pair(source, half):
    model = quietly(lambda: adapted(llama(tied=True), LoraConfig(target_modules=[half])))
    with pytest.raises(SyncRefused, match="tied to"):
        source(model)


@SOURCES
@pytest.mark.parametrize("half", ["embed_tokens", "lm_head"])
def test_one_half_of_a_tied_pair_trained_whole(source, half):
    config = LoraConfig(target_modules=["q_proj"], modules_to_save=[half])
    model = quietly(lambda: adapted(llama(tied=True), config))
    with pytest.raises(SyncRefused, match="tied to"):
        source(model)


@pytest.mark.parametrize("source", [ModuleGatherSource, FullGatherSource])
def test_both_halves_trained_alike_are_synced(source):
    config = TrainableTokensConfig(target_modules=["embed_tokens"], token_indices=[3])
    model = adapted(llama(tied=True), config)
    assert_yields(source(model), merged(model))


@SOURCES
def test_weights_that_were_never_loaded(source):
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(SyncRefused, match="meta device"):
        source(model)


@SOURCES
def test_nothing_to_sync(source):
    with pytest.raises(SyncRefused, match="no parameters"):
        source(nn.ReLU())
    with pytest.raises(SyncRefused, match=r"expected a torch\.nn\.Module"):
        source({"weight": torch.zeros(2)})


@SOURCES
def test_an_active_adapter_that_does_not_exist(source):
    model = adapted(llama(), LoraConfig(target_modules=["q_proj"]))
    del model.peft_config["default"]
    with pytest.raises(SyncRefused, match="'default' is active but the model has no adapter of that name"):
        source(model)


@SOURCES
def test_a_model_that_turns_bad_is_refused_at_the_next_pass(source):
    model = llama()
    made = source(model)
    model.model.norm.weight = nn.Parameter(torch.zeros(32, dtype=torch.int8), requires_grad=False)
    with pytest.raises(SyncRefused, match=r"model\.norm\.weight"):
        next(iter(made))


def test_a_refusal_is_bad_input():
    assert issubclass(SyncRefused, UsageError)


def test_mixtures_of_adapters_by_token(tmp_path):
    adapted(llama(), LoraConfig(target_modules=["q_proj"], task_type="CAUSAL_LM")).save_pretrained(tmp_path)
    config = XLoraConfig(task_type="CAUSAL_LM", hidden_size=32, xlora_depth=1, adapters={"0": str(tmp_path)})
    base = llama()
    base.config.use_cache = False
    model = quietly(lambda: get_peft_model(base, config))
    with pytest.raises(SyncRefused, match="mixes adapters by the input"):
        ModuleGatherSource(model)


@SOURCES
def test_prompts_inside_attention(source):
    config = AdaptionPromptConfig(adapter_len=2, adapter_layers=1, task_type="CAUSAL_LM")
    with pytest.raises(SyncRefused, match="changes inputs and not weights"):
        source(quietly(lambda: get_peft_model(llama(), config)))


@SOURCES
def test_a_method_without_a_merge(source):
    config = PolyConfig(target_modules=["q_proj"], task_type="CAUSAL_LM", r=2, n_tasks=2, n_skills=2)
    with pytest.raises(SyncRefused, match=r"q_proj\.weight is adapted by PEFT's poly\.Linear"):
        source(quietly(lambda: get_peft_model(llama(), config)))
