"""The memory law: what a peak is made of, fitted over models of several depths and widths.

A bound in bytes holds for the model on which it was measured. A law says what happens on the next one:

``peak = tensors x largest tensor + layers x bytes of a layer x depth``

The second coefficient is the one that decides whether a large model fits. It is 0 for a source that holds one module
at a time and 1 for a full gather, whatever else either of them costs. Both are fitted without a unit, as multiples of
the model's own sizes, so that small models speak for large ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

TOLERANCE = 0.1  # of a layer: Python's objects, and what the neighbours of a layer leave in a peak


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured model; all sizes in bytes."""

    depth: int
    """Number of layers."""
    layer_bytes: int
    """What one layer's tensors take."""
    largest_bytes: int
    """What the model's largest tensor takes."""
    peak_bytes: int
    """What was measured above the resident shard."""


@dataclass(frozen=True, slots=True)
class Law:
    """A fitted law, with the standard error of each coefficient."""

    tensors: float
    """Multiples of the largest tensor that are held whatever the depth."""
    layers: float
    """Multiples of a layer's bytes by which each layer raises the peak."""
    tensors_error: float
    """Standard error of ``tensors``."""
    layers_error: float
    """Standard error of ``layers``."""
    samples: tuple[Sample, ...]
    """What it was fitted to."""

    def grows(self, tolerance: float = TOLERANCE) -> bool:
        """Whether the peak rises with depth, by more than a part of a layer for each layer.

        Twice the standard error counts against the source: figures that obey no law prove nothing for it.
        """
        return self.layers + 2 * self.layers_error > tolerance

    def predict(self, *, depth: int, layer_bytes: int, largest_bytes: int) -> float:
        """Peak in bytes of another model, by the law."""
        return self.tensors * largest_bytes + self.layers * layer_bytes * depth

    def __str__(self) -> str:
        """The law as a sentence."""
        depths = sorted({sample.depth for sample in self.samples})
        widths = len({sample.largest_bytes for sample in self.samples})
        return (
            f"peak = {self.tensors:.2f} x the largest tensor + {self.layers:.2f} x a layer for each layer"
            f" (± {self.layers_error:.2f}; {len(self.samples)} models of {depths[0]} to {depths[-1]} layers"
            f" and {widths} widths)"
        )


def fit(samples: Sequence[Sample]) -> Law:
    """Fit the law by least squares; every sample weighs by its own largest tensor, so that widths weigh alike.

    Args:
        samples: at least three, of at least two depths.

    Raises:
        UsageError: there are too few samples to tell the two coefficients and their errors apart, or a size is not
            positive.
    """
    import numpy as np

    if len(samples) < 3 or len({sample.depth for sample in samples}) < 2:
        raise UsageError(
            f"a memory law needs at least 3 samples of 2 depths, got {len(samples)} of"
            f" {len({sample.depth for sample in samples})}"
        )
    if any(min(one.depth, one.layer_bytes, one.largest_bytes) <= 0 for one in samples):
        raise UsageError(
            "a memory law needs models with layers: a depth or a size of a sample is not positive"
        )
    terms = np.array([[1.0, one.depth * one.layer_bytes / one.largest_bytes] for one in samples])
    peaks = np.array([one.peak_bytes / one.largest_bytes for one in samples])
    found, *_ = np.linalg.lstsq(terms, peaks, rcond=None)
    left = peaks - terms @ found
    variance = float(left @ left) / (len(samples) - 2)
    errors = np.sqrt(np.diag(np.linalg.inv(terms.T @ terms)) * variance)
    return Law(float(found[0]), float(found[1]), float(errors[0]), float(errors[1]), tuple(samples))
