"""Real ZeRO-3 plus LoRA sync on a device: requested bytes, by formula, against the reference full gather.

Ranks share one device over gloo. Every expectation is a formula of the model's tensor sizes:

- a full gather holds every gathered parameter at once, base and adapter, so its peak is at least the model's bytes;
- the module-wise sync holds the unit being merged: the gathered weight, its merged copy, and PEFT's delta in the dtype
  of the adapter, each at most as large as the largest tensor;
- caching rounds nothing: what is asserted is the allocator's count of requested bytes.
"""

import pytest
import torch
from place import DEVICE, needs_device

from harness.conformance.sync.build import trainer
from harness.conformance.sync.consumer import discard
from harness.conformance.sync.oracle import sizes
from harness.conformance.sync.scenarios import SyncScenario
from harness.memory import measure
from harness.sync import FullGatherSource, ModuleGatherSource

SMALL = 1 << 20  # bytes: index tensors and workspaces that no formula of the model's sizes covers
SCENARIOS = [
    SyncScenario("llama", "lora", "zero3", 2, "bf16", DEVICE),
    SyncScenario("llama", "lora", "zero3", 2, "fp32", DEVICE),
    SyncScenario("tiedllama", "policy", "zero3", 2, "bf16", DEVICE),
]


def peak_of(source):
    discard(source)  # warm: first collectives, first matrix products
    with measure(DEVICE) as memory:
        discard(source)
    return memory


@pytest.mark.ranks(2, device=DEVICE)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.id)
def test_module_wise_sync_stays_near_one_tensor_where_the_full_gather_holds_the_model(scenario, rank):
    built = trainer(scenario)
    try:
        full, module_wise = peak_of(FullGatherSource(built.model)), peak_of(ModuleGatherSource(built.model))
    finally:
        built.close()
    largest, model = max(sizes(scenario).values()), sum(sizes(scenario).values())
    assert full.peak_bytes >= 0.9 * model
    assert module_wise.peak_bytes <= 3 * largest + SMALL
    assert module_wise.peak_bytes < full.peak_bytes / 2
    assert module_wise.retained_bytes <= SMALL
    assert full.retained_bytes <= SMALL


@needs_device
@pytest.mark.ranks(1, device=DEVICE)
def test_the_meter_counts_requested_bytes_and_names_the_line(rank):
    torch.ones(1, device="cuda")
    with measure(DEVICE) as memory:
        block = torch.ones(3_000_001, dtype=torch.uint8, device="cuda")
        kept = block[:0].clone()
        del block
    assert memory.peak_bytes == 3_000_001
    assert memory.retained_bytes == 0
    assert memory.top(1)[0].file.endswith("test_peak.py")
    assert kept.numel() == 0
