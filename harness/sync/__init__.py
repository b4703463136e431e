"""Weight sync from a sharded trainer to an engine: exact, bounded in memory, leaving the model alone.

``FullGatherSource`` is the reference full gather that others are measured against; ``ModuleGatherSource`` is
the fix; both are a ``WeightSource``. The package knows nothing of pytest; DeepSpeed and PEFT are imported
where they are used.
"""

from harness.sync.buckets import Bucket, bucketed
from harness.sync.errors import SyncFailed, SyncRefused
from harness.sync.full_gather import FullGatherSource
from harness.sync.module_gather import ModuleGatherSource, SenderGatherSource
from harness.sync.push import push
from harness.sync.source import ParamMeta, WeightSource

__all__ = [
    "Bucket",
    "FullGatherSource",
    "ModuleGatherSource",
    "ParamMeta",
    "SenderGatherSource",
    "SyncFailed",
    "SyncRefused",
    "WeightSource",
    "bucketed",
    "push",
]
