"""Prints the comparison table of docs/ranks.md: ``python benchmarks/rank_table.py`` (minutes; one run, one machine)."""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from test_ranks import ALL_REDUCE, SPAWNING, WARM, ours, peer, settled


def main() -> None:
    """Every harness in turn, ours before and after them."""
    spawning_tests = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        body = ALL_REDUCE.format(ranks=2)
        before = ours(Path(folder), 20, 2, body)
        rows += [(name, peer(name, spawning_tests, 2)) for name in SPAWNING]
        rows += [(name, peer(name, 20, 2)) for name in WARM]
        after = ours(Path(folder), 20, 2, body)
    mine = statistics.median([settled(before), settled(after)])
    load = os.getloadavg()[0]
    print(f"{os.cpu_count()} CPUs, load average {load:.1f}; an all_reduce on two gloo ranks\n")
    print(
        "| harness | first test, s | a further test, ms | times ours | 20 tests, s |\n|---|---|---|---|---|"
    )
    for name, seconds in [("`@pytest.mark.ranks(2)`", before), ("the same, after the others", after), *rows]:
        further = settled(seconds)
        print(
            f"| {name} | {seconds[0]:.1f} | {further * 1000:.1f} | {further / mine:.1f} |"
            f" {seconds[0] + 19 * further:.1f} |"
        )


if __name__ == "__main__":
    main()
