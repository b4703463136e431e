"""ZeRO-3: what each source yields on every rank, and what it leaves alone."""

import pytest
import torch
from sync_models import adapted, assert_yields, llama, merged, same_bits

from conftest import zero3_engine
from harness.sync import FullGatherSource, ModuleGatherSource, SenderGatherSource

SOURCES = pytest.mark.parametrize("source", [ModuleGatherSource, FullGatherSource])


def build(kind):
    """The unsharded model of a kind: dtype, adapter, whether small parameters persist."""
    from peft import LoraConfig

    dtype = torch.bfloat16 if "bf16" in kind else torch.float32
    model = llama(dtype=dtype, tied="tied" in kind)
    if "plain" in kind:
        return model
    config = LoraConfig(
        r=3,
        target_modules="all-linear",
        use_dora="dora" in kind,
        modules_to_save=["norm"] if "saved" in kind else None,
    )
    return adapted(model, config, name="policy" if "saved" in kind else "default")


@pytest.fixture
def trainer(engines, request):
    kind = request.param
    if kind not in engines:
        engines[kind] = zero3_engine(
            build(kind), bf16="bf16" in kind, persistence=10_000 if "persistent" in kind else 0
        )
    return engines[kind], merged(build(kind))


def kinds(*names):
    return pytest.mark.parametrize("trainer", names, indirect=True)


@pytest.mark.ranks(1, 2)
@kinds("lora-bf16", "dora-fp32", "lora-saved-fp32-persistent")
@SOURCES
def test_every_rank_is_given_the_merged_model(rank, trainer, source):
    engine, expected = trainer
    before = [live.ds_tensor.clone() for live in engine.module.parameters()]
    places = [live.ds_tensor.data_ptr() for live in engine.module.parameters()]
    status = [live.ds_status for live in engine.module.parameters()]
    made = source(engine.module)
    for _ in range(2):
        assert_yields(made, expected)
    live = list(engine.module.parameters())
    assert all(same_bits(one.ds_tensor, old) for one, old in zip(live, before, strict=True))
    assert [one.ds_tensor.data_ptr() for one in live] == places
    assert [one.ds_status for one in live] == status


@pytest.mark.ranks(1, 2)
@kinds("lora-bf16", "dora-fp32")
def test_only_the_sender_is_given_tensors(rank, trainer):
    engine, expected = trainer
    for sender in range(rank.world_size):
        source = SenderGatherSource(engine.module, sender)
        if rank.rank == sender:
            assert_yields(source, expected)
        else:
            assert [meta.name for meta in source.metadata()] == [name for name, _ in expected]
            assert list(source) == []


@pytest.mark.ranks(2)
@kinds("lora-bf16")
def test_base_bytes_are_identical_after_many_rounds(rank, trainer):
    engine, _ = trainer
    before = [live.ds_tensor.clone() for live in engine.module.parameters()]
    for _ in range(10):
        for _, tensor in ModuleGatherSource(engine.module):
            tensor.zero_()
    assert all(
        same_bits(live.ds_tensor, old) for live, old in zip(engine.module.parameters(), before, strict=True)
    )


@pytest.mark.ranks(2)
@kinds("lora-bf16")
@pytest.mark.parametrize("stop", [1, 7, 17])
def test_a_pass_abandoned_at_the_same_yield_leaves_nothing_behind(rank, trainer, stop):
    engine, expected = trainer
    stream = iter(ModuleGatherSource(engine.module))
    for _ in range(stop):
        next(stream)
    del stream
    assert_yields(ModuleGatherSource(engine.module), expected)


@pytest.mark.ranks(2)
@kinds("lora-bf16")
@SOURCES
def test_inside_a_gather_and_after_an_aborted_forward(rank, trainer, source):
    import deepspeed

    engine, expected = trainer
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        assert_yields(source(engine.module), expected)
    live = next(live for live in engine.module.parameters() if live.ds_numel > 100)
    live.ds_active_sub_modules.add(123456)  # what a forward that raised leaves
    try:
        assert_yields(source(engine.module), expected)
    finally:
        live.ds_active_sub_modules.clear()


@pytest.mark.ranks(2)
def test_parameters_built_in_parts(rank):
    import deepspeed

    whole = llama()
    with deepspeed.zero.Init(config_dict_or_path={"train_batch_size": 2, "zero_optimization": {"stage": 3}}):
        parts = llama()
    with deepspeed.zero.GatheredParameters(list(parts.parameters()), modifier_rank=0):
        if rank.rank == 0:
            for live, wanted in zip(parts.parameters(), whole.parameters(), strict=True):
                live.data.copy_(wanted.data)
    assert_yields(ModuleGatherSource(parts), merged(whole))


@pytest.mark.ranks(2)
def test_a_round_after_a_step_yields_the_new_weights(rank):
    engine = zero3_engine(build("lora-fp32"))
    try:
        tokens = torch.arange(8)[None]
        before = dict(ModuleGatherSource(engine.module))
        engine.backward(engine(input_ids=tokens, labels=tokens).loss)
        engine.step()
        after, whole = dict(ModuleGatherSource(engine.module)), dict(FullGatherSource(engine.module))
        assert any(not same_bits(after[name], before[name]) for name in before)
        assert all(same_bits(after[name], whole[name]) for name in whole)
    finally:
        engine.destroy()
