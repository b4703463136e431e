"""Known failures: a TOML file that a project keeps in its CI, so that only what changed fails the run.

```toml
[[known]]
check = "sync/peak"
subject = "trl"
scenario = "*zero3*"
kind = "over-bound"
reason = "gathers the whole model"
link = "https://github.com/huggingface/trl/issues/3133"
```

An entry that matches nothing, that no longer fails, or fails in another way, fails the run: a stale baseline hides.
"""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from harness.conformance.verdict import Cell, Kind, Verdict
from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_FIELDS = ("check", "subject", "scenario", "kind", "reason", "link")


@dataclass(frozen=True)
class Known:
    """One known failure; check, subject and scenario may be globs."""

    check: str
    subject: str
    scenario: str
    kind: str
    reason: str
    link: str

    def covers(self, cell: Cell) -> bool:
        """Whether the entry is about this cell, whatever its verdict."""
        pairs = ((self.check, cell.check), (self.subject, cell.subject), (self.scenario, cell.scenario))
        return all(fnmatchcase(value, glob) for glob, value in pairs)


def read(path: Path) -> list[Known]:
    """The entries of a baseline.

    Raises:
        UsageError: the file is missing, is not TOML, or an entry lacks a field or has an unknown one.
    """
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(f"cannot read the baseline {path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the baseline {path} is not TOML: {error}") from None
    entries = document.get("known", [])
    if not isinstance(entries, list) or set(document) - {"known"}:
        raise UsageError(f"the baseline {path}: expected [[known]] tables only")
    return [_entry(entry, f"{path}, entry {index + 1}") for index, entry in enumerate(entries)]


def _entry(entry: object, where: str) -> Known:
    if not isinstance(entry, dict):
        raise UsageError(f"{where}: expected a table with {', '.join(_FIELDS)}")
    missing = [name for name in _FIELDS if not isinstance(entry.get(name), str) or not entry[name].strip()]
    unknown = sorted(set(entry) - set(_FIELDS))
    if missing or unknown:
        complaint = f"missing or empty: {', '.join(missing)}" if missing else f"unknown: {', '.join(unknown)}"
        raise UsageError(f"{where}: expected text for {', '.join(_FIELDS)}; {complaint}")
    if entry["kind"] not in set(Kind):
        raise UsageError(f"{where}: unknown kind {entry['kind']!r}: expected one of {', '.join(Kind)}")
    return Known(**entry)


def compare(cells: Sequence[Cell], known: Sequence[Known]) -> list[str]:
    """Every way in which the run is not what the baseline says, as sentences; empty when it is."""
    surprises: list[str] = []
    for cell in cells:
        entry = next((each for each in known if each.covers(cell)), None)
        place = f"{cell.subject} {cell.check} {cell.scenario}"
        if cell.verdict is Verdict.FAIL and entry is None:
            surprises.append(f"{place}: fails ({cell.kind}) and is not in the baseline")
        elif cell.verdict is Verdict.FAIL and entry is not None and entry.kind != cell.kind:
            surprises.append(f"{place}: expected to fail with {entry.kind}, fails with {cell.kind}")
        elif cell.verdict is Verdict.PASS and entry is not None:
            surprises.append(
                f"{place}: passes, and the baseline says that it fails ({entry.reason}): remove it"
            )
    return surprises + [
        f"the baseline's {entry.subject} {entry.check} {entry.scenario} matches no cell"
        for entry in known
        if not any(entry.covers(cell) for cell in cells)
    ]


def first(cells: Sequence[Cell]) -> str:
    """A baseline of this run's failures, to be given reasons and links by a person."""
    blocks = ["# Known failures. Give each a reason and a link; remove what is mended.\n"]
    for cell in cells:
        if cell.verdict is Verdict.FAIL:
            fields = {
                "check": cell.check,
                "subject": cell.subject,
                "scenario": cell.scenario,
                "kind": str(cell.kind),
                "reason": cell.message.splitlines()[0],
                "link": "none yet",
            }
            lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()]
            blocks.append("\n".join(["[[known]]", *lines, ""]))
    return "\n".join(blocks)
