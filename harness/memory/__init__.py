"""Meters for the peak of live bytes: memray on CPU, the CUDA allocator's own counters on GPU.

```python
with measure() as m:
    ...
m.peak_bytes, m.retained_bytes, m.top(5)
```

``law`` fits what was measured over models of several sizes, and ``fake`` measures models that nobody allocates.
"""

from harness.memory.measurement import Measurement, Site
from harness.memory.meter import Meter, measure, meter_for

__all__ = ["Measurement", "Meter", "Site", "measure", "meter_for"]
