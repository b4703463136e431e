"""What the ranks' fork server imports for scenarios under ZeRO-3: DeepSpeed with its op loaded.

A rank that loads the op itself runs ninja and takes torch's build lock; a rank killed in that moment would leave the
lock behind for all that come later.
"""

from __future__ import annotations

from contextlib import suppress

from harness.conformance import deepspeed_op

with suppress(ImportError):
    deepspeed_op.load()
