"""Merging by rows gives PEFT's bits, wherever a rank's run begins and ends."""

import random
import warnings

import pytest
import torch
from peft import LoraConfig
from sync_models import adapted, same_bits
from torch import nn

from harness.sync import rows
from harness.sync.adapters import active_parameters
from harness.sync.rows import PeftOnRows, RowMerger, cuts, weight_by_rows

SHAPES = [(1000, 300), (70, 33), (640, 64), (64, 8), (333, 77), (30, 5), (2, 200), (257, 16)]


class Two(nn.Module):
    def __init__(self, out, into):
        super().__init__()
        from transformers.pytorch_utils import Conv1D

        self.straight, self.across = nn.Linear(into, out), Conv1D(out, into)

    def forward(self, x):
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_cut_over_ranks_gives_the_same_bits(shape, dtype):
    dice = random.Random(str(shape))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = adapted(
            Two(*shape).to(dtype), LoraConfig(r=8, lora_alpha=12, target_modules=["straight", "across"])
        )
    for layer in (model.base_model.model.straight, model.base_model.model.across):
        weight = weight_by_rows(layer)
        factors = {id(live): live.data for live in active_parameters(layer)}
        expected = weight.data + layer.get_delta_weight("default")
        for ranks in (1, 2, 3, 7):
            flat = weight.data.reshape(-1).clone()
            each = -(-flat.numel() // ranks)
            for start in range(0, flat.numel(), each):
                stop = min(start + each, flat.numel())
                merger = RowMerger(layer, factors, tuple(weight.shape))
                merger.merge_run(flat[start:stop], start, stop, dice.choice([1, 10**5, 10**6]))
            assert same_bits(flat.view(weight.shape), expected), (ranks, each)


def test_arithmetic_that_is_not_pefts_is_found_and_not_used(monkeypatch):
    monkeypatch.setattr(rows, "_agreed", {})
    model = adapted(nn.Sequential(nn.Linear(40, 130)), LoraConfig(r=4, target_modules=["0"]))
    layer = model.base_model.model[0]
    monkeypatch.setattr(
        type(layer),
        "get_delta_weight",
        lambda self, name: torch.full((64, 40), 3.0)[: len(self.lora_B[name].weight)],
    )
    weight = weight_by_rows(layer)
    merger = RowMerger(layer, {id(live): live.data for live in active_parameters(layer)}, tuple(weight.shape))
    flat = weight.data[:64].reshape(-1).clone()
    merger.merge_run(flat, 0, flat.numel(), 1)
    assert not any(rows._agreed.values())
    assert isinstance(merger._adder, PeftOnRows)
    assert torch.equal(flat.view(64, 40), weight.data[:64] + 3.0)


@pytest.mark.parametrize("config", [{"use_dora": True}, {"lora_bias": True}], ids=str)
def test_layers_whose_rows_depend_on_more_go_to_peft_whole(config):
    model = adapted(nn.Sequential(nn.Linear(40, 130)), LoraConfig(r=4, target_modules=["0"], **config))
    assert weight_by_rows(model.base_model.model[0]) is None


def test_cuts_lie_between_rows():
    assert cuts((256, 10), 2, 64 * 20) == [640, 1280, 1920]
    assert cuts((256, 10), 2, 1) == list(range(10, 2560, 10))
    assert cuts((7,), 4, 8) == [2, 4, 6]
    assert cuts((), 4, 8) == []
