"""How much a pass may hold beside the shard: the largest tensor and a quarter of it, whatever the depth.

Everything follows from the largest tensor that is yielded. While a consumer holds it, the pass keeps to the
quarter; while the consumer holds smaller ones, the rest of the room prefetches.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits in bytes, all from one figure."""

    largest: int
    """Bytes of the largest tensor that a pass yields."""

    @property
    def window(self) -> int:
        """What the consumer was last given and what is fetched ahead may hold together."""
        return self.largest

    @property
    def pack(self) -> int:
        """Small parameters that travel together; two packs are held at most."""
        return max(self.largest // 32, 1 << 14)

    @property
    def small(self) -> int:
        """A parameter of at most this size travels in a pack."""
        return max(self.largest // 256, 1 << 12)

    @property
    def chunk(self) -> int:
        """What a rank that only sends copies of its shard at once; three are held at most."""
        return max(self.largest // 24, 1 << 14)

    def scratch(self, held: int) -> int:
        """What a merge may allocate at once, while so many bytes of yielded and fetched tensors are held."""
        return max(min(self.largest // 8, self.largest * 9 // 8 - held), self.largest // 32)
