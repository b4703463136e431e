"""What the GPU tests share: the reason for skipping all of them, and the trainer that they measure."""

from pathlib import Path

import pytest
from place import DRY

HERE = Path(__file__).parent


def _reason() -> str | None:
    """Why no test of this folder can run here; None when they can."""
    import torch

    if DRY:
        return None
    if torch.version.cuda is None:
        return "needs a CUDA build of torch; this one is for CPU only"
    if not torch.cuda.is_available():
        return "needs a CUDA device; torch sees none"
    return None


def pytest_collection_modifyitems(items):
    ours = [item for item in items if HERE in item.path.parents]
    if not ours:
        return
    reason = _reason()
    for item in ours:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))
