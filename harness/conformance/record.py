"""The record of a run: one JSON document with a published schema, from which every table and page is made."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict
from importlib import resources
from typing import TYPE_CHECKING, Any

from harness import __version__
from harness.conformance.verdict import Cell, Kind, Verdict
from harness.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SCHEMA_VERSION = 1


def schema() -> dict[str, Any]:
    """The JSON Schema of a record, as published in the package."""
    text = (resources.files("harness.conformance") / f"schema-{SCHEMA_VERSION}.json").read_text()
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def record(cells: Sequence[Cell], environment: dict[str, object]) -> dict[str, Any]:
    """The document of one run."""
    return {
        "schema": SCHEMA_VERSION,
        "suite": __version__,
        "environment": environment,
        "cells": [_plain(asdict(cell)) for cell in cells],
    }


def write(path: Path, document: dict[str, Any]) -> None:
    """Write a record; a half-written file never stands under its name.

    Raises:
        UsageError: the place cannot be written to.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
        draft.replace(path)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def cells_of(document: dict[str, Any]) -> list[Cell]:
    """The cells of a record that was read back."""
    return [
        Cell(
            **{
                **entry,
                "verdict": Verdict(entry["verdict"]),
                "kind": Kind(entry["kind"]) if entry["kind"] else None,
            }
        )
        for entry in document["cells"]
    ]


def _plain(value: Any) -> Any:
    """JSON has no infinities: they become text, as do values that it has no type for."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value)
