"""What a consumer may do with streams: be slow, be on a stream of its own, or have the whole pass on one.

A yielded tensor is ready on the stream that was current when the source was asked for it, as any tensor of torch is.
A consumer that reads it on another stream makes that stream wait, and says so to the allocator (``record_stream``).
"""

import pytest
import torch
from place import DEVICE, DRY, needs_device

from harness.conformance.sync.build import trainer
from harness.conformance.sync.oracle import targets
from harness.conformance.sync.scenarios import SyncScenario
from harness.sync import ModuleGatherSource, SenderGatherSource

LATE = 20_000_000  # cycles of the device: some ten milliseconds, in which the host runs far ahead
SCENARIO = SyncScenario("llama", "lora", "zero3", 2, "bf16", DEVICE)
pytestmark = [pytest.mark.ranks(2, device=DEVICE), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def model(rank):
    built = trainer(SCENARIO)
    yield built.model
    built.close()


def be_late():
    """Keep the current stream busy before whatever is asked of it next."""
    if not DRY:
        torch.cuda._sleep(LATE)


def assert_right(arrived):
    if not DRY:
        torch.cuda.synchronize()
    expected = targets(SCENARIO)
    assert list(arrived) == list(expected)
    wrong = {
        name: expected[name].error(value)
        for name, value in arrived.items()
        if expected[name].error(value) > 1
    }
    assert not wrong


def test_prefetch_does_not_overwrite_what_a_late_kernel_has_yet_to_read(rank, model):
    arrived = {}
    for name, tensor in ModuleGatherSource(model):
        be_late()
        arrived[name] = tensor.clone()  # runs after the delay, when the next tensors have been fetched
        del tensor
    assert_right(arrived)


def test_the_tensors_are_kept_views_until_the_end(rank, model):
    kept = dict(ModuleGatherSource(model))
    be_late()
    assert_right({name: tensor.clone() for name, tensor in kept.items()})


@needs_device
def test_a_consumer_on_another_stream_waits_for_the_current_one(rank, model):
    side = torch.cuda.Stream()
    arrived = {}
    for name, tensor in ModuleGatherSource(model):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            be_late()
            arrived[name] = tensor.clone()
        tensor.record_stream(side)  # or its memory could be given out again before the copy has run
        del tensor
    torch.cuda.current_stream().wait_stream(side)
    assert_right(arrived)


@needs_device
def test_a_pass_on_a_stream_of_its_own_is_right(rank, model):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        arrived = {}
        for name, tensor in ModuleGatherSource(model):
            be_late()
            arrived[name] = tensor.clone()
            del tensor
    torch.cuda.current_stream().wait_stream(side)
    assert_right(arrived)


def test_what_goes_to_the_sender_arrives_through_the_host(rank, model):
    arrived = {}
    for name, tensor in SenderGatherSource(model):
        be_late()
        arrived[name] = tensor.clone()
        del tensor
    if rank.rank == 0:
        assert_right(arrived)
    else:
        assert not arrived
