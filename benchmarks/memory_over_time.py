"""Draws what a rank holds above its shard during one sync: TRL's full gather beside the reference, from a real run.

    python benchmarks/memory_over_time.py docs/weight-sync-memory.png

Two ranks on CPU, the 384 MiB Llama of the benchmarks under ZeRO-3 with LoRA; rank 0 is drawn. Needs the extras ``trl``
and ``report``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from trainer_rank import TrainerRank

from harness.conformance.deepspeed_op import ensure_built
from harness.ipc import WorkerPool

RANKS, LAYERS, MIB = 2, 16, 1 << 20
PATHS = {
    "trl": ("TRL 1.16, full gather", "#b03a2e"),
    "module-wise": ("reference, module by module", "#1f618d"),
}
Timeline = list[tuple[float, int]]


def timelines(folder: str) -> tuple[dict[str, Timeline], dict[str, int]]:
    """Bytes over seconds on rank 0, of the second pass of each path; and the sizes of the model."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    ensure_built()
    found = {}
    with WorkerPool(
        lambda index: TrainerRank(index, RANKS, folder, LAYERS), RANKS, timeout=600, start_timeout=300
    ) as pool:
        for path in PATHS:
            pool.call("one_pass", path)  # warm
            calls = [(path, f"{folder}/{path}-{rank}.bin") for rank in range(RANKS)]
            found[path] = pool.scatter("timeline", calls)[0]
        return found, pool.call("sizes")[0]


def draw(found: dict[str, Timeline], sizes: dict[str, int], place: Path) -> None:
    """One picture; the format follows the suffix of its name."""

    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for path, (label, colour) in PATHS.items():
        seconds, held = zip(*found[path], strict=True)
        mib = [size / MIB for size in held]
        axes.plot(seconds, mib, color=colour, linewidth=1.6, label=f"{label}: peak {max(mib):.1f} MiB")
    lines = (("the model", sizes["model_bytes"], "--"), ("the largest tensor", sizes["largest_bytes"], ":"))
    for name, size, style in lines:
        axes.axhline(
            size / MIB, color="#555555", linewidth=0.8, linestyle=style, label=f"{name}: {size / MIB:.1f} MiB"
        )
    axes.set_xlabel("seconds since the sync began")
    axes.set_ylabel("memory above the resident shard, MiB")
    axes.set_title(f"One sync on rank 0 of {RANKS} (ZeRO-3, LoRA, bf16, CPU)", fontsize=11)
    axes.set_xlim(left=0)
    axes.set_ylim(0, 1.3 * max(size for _, size in found["trl"]) / MIB)
    axes.legend(loc="upper center", ncols=2, frameon=False, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(place, dpi=130)


def main() -> None:
    """Run, draw, and say where."""
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "weight-sync-memory.png")
    with tempfile.TemporaryDirectory(prefix="harness-timeline-") as folder:
        found, sizes = timelines(folder)
    draw(found, sizes, place)
    for path, line in found.items():
        print(f"{path}: peak {max(size for _, size in line) / MIB:.1f} MiB, {line[-1][0]:.2f} s")
    print(f"wrote {place}")


if __name__ == "__main__":
    main()
