"""The memory law at real shapes: what a sync of a model too large for this machine would take on each GPU.

The code of each path runs as it is (this package's sources, TRL's generator, DeepSpeed's partitions, PEFT's merges),
on fake tensors, which have shapes and sizes and no memory, as rank 0 of a process group that is not there. What is
counted is every storage that this code makes. Nothing is extrapolated.
"""

from harness.law.model import Model, read, standard
from harness.law.rows import Request, Row, rows

__all__ = ["Model", "Request", "Row", "read", "rows", "standard"]
