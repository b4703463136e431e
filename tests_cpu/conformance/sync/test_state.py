"""What a model was is put back, and what it is now is told, however its bytes are held."""

from types import SimpleNamespace

import torch

from harness.conformance.sync.state import ModelState


def persistent(model):
    """Dress the weight as ZeRO-3's persistent parameters are: a shard, and the whole beside it."""
    weight = model.weight
    weight.ds_tensor, weight.ds_persist = weight.detach().flatten().clone(), True
    weight.ds_status = SimpleNamespace(name="AVAILABLE")
    return model


def test_a_persistent_parameter_whose_whole_was_made_anew_is_put_back_in_both_places():
    model = persistent(torch.nn.Linear(3, 2, bias=False))
    before = ModelState.capture(model)
    model.weight.ds_tensor.zero_()
    model.weight.data = torch.zeros(2, 3)
    assert len(before.differences()) == 2
    assert before.restore()
    assert torch.equal(model.weight.data.flatten(), model.weight.ds_tensor)
    assert before.differences() == []


def test_a_weight_in_other_memory_a_changed_buffer_and_a_gradient_are_told_or_cleared():
    model = torch.nn.BatchNorm1d(4)
    before = ModelState.capture(model)
    model.weight.data = model.weight.data.clone()
    model.running_mean.add_(1)
    model.bias.grad = torch.ones(4)
    assert before.differences() == ["weight moved to other memory", "buffer running_mean changed"]
    assert before.restore()
    assert model.bias.grad is None
