"""The proof by exhaustion: on a device with room for half of the model, the full gather fails and the other does not.

The room is made by ``torch.cuda.set_per_process_memory_fraction``, so that a large card shows what a small one would.
Both ranks have the same room and ask for the same tensors in the same order, so both fail at the same place, and
neither waits for the other.
"""

import gc
from contextlib import contextmanager

import pytest
import torch
from place import DEVICE, needs_device

from harness.conformance.sync.consumer import discard
from harness.conformance.sync.family import Member
from harness.conformance.sync.scenarios import SyncScenario
from harness.sync import FullGatherSource, ModuleGatherSource

DEEP = (24, 512)  # 24 layers of 5 MiB beside an embedding of 4 MiB, in bf16
pytestmark = [pytest.mark.ranks(2, device=DEVICE), pytest.mark.timeout(300), needs_device]


@contextmanager
def room(nbytes):
    """Let this process reserve so many bytes beyond what it holds now, rounded up to the allocator's segments."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    device = torch.cuda.current_device()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + nbytes) / total, device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        gc.collect()
        torch.cuda.empty_cache()


def test_with_room_for_half_of_the_model_only_the_module_wise_sync_ends(rank):
    member = Member(*DEEP, SyncScenario("llama", "lora", "zero3", 2, "bf16", DEVICE))
    model = member.build()
    discard(ModuleGatherSource(model))  # warm: workspaces are part of what is held before
    total = sum(meta.nbytes for meta in ModuleGatherSource(model).metadata())
    # The allocator reserves in segments of 20 MiB for tensors of 1 to 10 MiB: room for two is the least that is fair.
    assert total / 2 > 40 << 20
    with room(total / 2):
        tensors, _ = discard(ModuleGatherSource(model))
        assert tensors == len(ModuleGatherSource(model).metadata())
        with pytest.raises(torch.cuda.OutOfMemoryError):
            discard(FullGatherSource(model))
        gc.collect()
        torch.cuda.empty_cache()
        assert discard(ModuleGatherSource(model))[0] == tensors  # and the model is none the worse for it
