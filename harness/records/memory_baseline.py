"""Bytes of a benchmark run against a committed baseline: memory does not depend on how busy a machine is, so it gates.

Every figure of a benchmark's ``extra_info`` whose name ends in ``_bytes`` takes part, a number or a list with one
number per rank. Seconds never do: they are shown as ratios within one run.
"""

from __future__ import annotations

import json
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

RELATIVE, ABSOLUTE = 0.02, 256 << 10  # a figure may grow by 2 % and 256 KiB: Python's own objects
Figures = dict[str, dict[str, list[int]]]


def machine_kind() -> str:
    """What figures are comparable on: the architecture and the system; memory does not depend on the rest."""
    return f"{platform.system().lower()}-{platform.machine()}"


@dataclass(frozen=True)
class Comparison:
    """What a run differs in.

    Attributes:
        regressions: figures above their baseline's tolerance, or without a baseline, as sentences.
        improvements: figures so far below their baseline that it should follow them, as sentences.
    """

    regressions: tuple[str, ...]
    improvements: tuple[str, ...]


def figures_of(extra_infos: Mapping[str, Mapping[str, Any]]) -> Figures:
    """The figures in bytes of each benchmark, by its name."""
    found: Figures = {}
    for name, extra in extra_infos.items():
        sized = {key: _numbers(value) for key, value in extra.items() if key.endswith("_bytes")}
        if sized:
            found[name] = sized
    return found


def _numbers(value: Any) -> list[int]:
    return [int(each) for each in (value if isinstance(value, list | tuple) else [value])]


def compare(run: Figures, baseline: Figures) -> Comparison:
    """Every figure of the run against the baseline; benchmarks that did not run are left alone."""
    worse, better = [], []
    for name, sized in run.items():
        for key, values in sized.items():
            known = baseline.get(name, {}).get(key)
            if known is None or len(known) != len(values):
                worse.append(f"{name}: {key} = {values} has no baseline")
                continue
            for index, (value, reference) in enumerate(zip(values, known, strict=True)):
                place = f"{name}: {key}" + (f" on rank {index}" if len(values) > 1 else "")
                room = reference * RELATIVE + ABSOLUTE
                if value > reference + room:
                    worse.append(f"{place} = {value}, baseline {reference}, allowed {int(reference + room)}")
                elif value < reference - room:
                    better.append(f"{place} = {value}, baseline {reference}")
    return Comparison(tuple(worse), tuple(better))


def read(path: Path) -> Figures:
    """The figures for this kind of machine; empty when there are none yet.

    Raises:
        UsageError: the file is no baseline.
    """
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text())
        entry: Figures = document["machines"].get(machine_kind(), {}).get("figures", {})
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"{path} is no baseline of bytes: {error}") from None
    return entry


def accept(path: Path, run: Figures, why: str) -> None:
    """Make the run's figures the baseline of this kind of machine, with the reason beside them.

    Raises:
        UsageError: no reason given, or the file is no baseline.
    """
    if not why.strip():
        raise UsageError("say why these bytes are right from now on: --accept-bytes 'reason'")
    merged = {**read(path), **run}
    document = json.loads(path.read_text()) if path.exists() else {"machines": {}}
    entry = document["machines"].setdefault(machine_kind(), {"accepted": []})
    entry["accepted"].append(why)
    entry["figures"] = merged
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")
