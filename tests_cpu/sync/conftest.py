"""Trainers under ZeRO-3, one engine per kind and session: initialising one costs more than most tests."""

import sys

import pytest
import torch

import harness.conformance.deepspeed_op  # noqa: F401  says where DeepSpeed's compiled op lives


def zero3_engine(model, *, bf16=False, persistence=0):
    """The model, partitioned; collective. The shared-memory op is left out: nothing here uses it."""
    import deepspeed

    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.SGD(trained, lr=0.1),
        config={
            "train_micro_batch_size_per_gpu": 1,
            "bf16": {"enabled": bf16},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {
                "stage": 3,
                "stage3_param_persistence_threshold": persistence,
                "reduce_bucket_size": 100_000,
            },
        },
    )
    return engine


@pytest.fixture(scope="session")
def engines():
    """Engines of this rank by kind; each is built when it is first asked for."""
    built = {}
    yield built
    for engine in built.values():
        engine.destroy()
