"""``docs/spec.md``, made from the declarations of the checks: one source for what is required and what is run."""

from __future__ import annotations

from harness.conformance.check import DOMAINS, Check, load_checks

_TITLES = {"sync": "Weight sync", "ipc": "Worker IPC", "engine": "Inference engine"}
_HEAD = """# Requirements

One section per domain, one entry per check. MUST and SHOULD are meant as in RFC 2119; whatever a sentence permits
passes. Ids are permanent. This file is made by `harness list checks --markdown`; a test holds it to the code.
"""


def markdown() -> str:
    """The whole document."""
    parts = [_HEAD]
    for domain in DOMAINS:
        checks = [check for check in load_checks().values() if check.domain == domain]
        if checks:
            parts += [f"## {_TITLES[domain]}\n", *(_entry(check) for check in checks)]
    return "\n".join(parts)


def _entry(check: Check) -> str:
    facts = [f"since {check.since}"]
    if check.smoke:
        facts.append("first stage: a subject that fails it is judged no further")
    if check.aliases:
        facts.append(f"formerly {', '.join(f'`{alias}`' for alias in check.aliases)}")
    if check.reports:
        facts.append(f"public reports: {', '.join(check.reports)}")
    return f"### `{check.id}`\n\n{check.sentence}\n\n*{'; '.join(facts)}*\n"
