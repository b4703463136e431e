"""States in which adapters can be, and parameters that are tied: what an engine is due in each."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.check import check
from harness.conformance.sync.build import bare
from harness.conformance.sync.consumer import read_at_once
from harness.conformance.sync.models import tokens
from harness.conformance.sync.oracle import merge
from harness.conformance.sync.state import ModelState
from harness.conformance.sync.states import STATES
from harness.conformance.sync.subject import Round
from harness.conformance.verdict import Kind, SubjectRaised, Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from harness.conformance.sync.oracle import Target
    from harness.conformance.sync.stage import SyncCell


@check(
    "sync/adapters",
    must=(
        "Whatever its adapters are called and in whatever state they are (several active, one frozen beside, combined,"
        " disabled, merged already), a round MUST yield what merge_and_unload() of that model gives, and leave the"
        " adapters in that state."
    ),
    since="0.1",
    reports=("trl#6975", "peft#3608", "trl#6386"),
    scenarios=("llama-lora-*", "gpt2-lora-*", "moe-lora-*", "convnet-lora-*"),
)
def test_adapters(sync: SyncCell) -> None:
    judged: dict[str, str] = {}
    for state in STATES:
        model, due = state.build(sync.scenario, merge)
        before = ModelState.capture(model)
        try:
            got: dict[str, Any] = {}
            seen = Counter(
                name
                for name, tensor in Round(sync.subject, model, sync.context).stream()
                if got.update({name: tensor.detach().clone()}) is None
            )
            judged[state.name] = _complaint(seen, got, due)
        except SubjectRaised as error:
            judged[state.name] = str(error)
        changed = before.differences()
        if changed and not judged[state.name]:
            judged[state.name] = f"the model was left changed: {changed[0]}"
    sync.evidence["states"] = {name: complaint or "right" for name, complaint in judged.items()}
    wrong = {name: complaint for name, complaint in judged.items() if complaint}
    if wrong:
        name, complaint = next(iter(wrong.items()))
        raise Violation(
            Kind.WRONG, f"{len(wrong)} of {len(judged)} states of adapters; the first, {name}: {complaint}"
        )


def _complaint(seen: Counter[str], got: Mapping[str, torch.Tensor], due: Mapping[str, Target]) -> str:
    """What is wrong with what arrived; empty when nothing is."""
    for names, complaint in (
        (seen.keys() - due.keys(), "the engine does not know"),
        (due.keys() - seen.keys(), "missing is"),
        ({name for name, count in seen.items() if count > 1}, "more than once arrived"),
    ):
        if names:
            return f"{complaint} {min(names)}"
    for name, target in due.items():
        if got[name].shape != target.merged.shape:
            return f"{name} has shape {tuple(got[name].shape)} instead of {tuple(target.merged.shape)}"
        if target.error(got[name]) > 1.0:
            stale = " (it is without its adapter)" if target.is_unmerged(got[name]) else ""
            return f"{name} is off by {target.error(got[name]):.3g} times what rounding explains{stale}"
    return ""


@check(
    "sync/tied",
    must=(
        "An engine that ties the parameters that the model ties, and loads what a round yields in that order, MUST give"
        " the logits of the merged model; and the trainer's own stay tied."
    ),
    since="0.1",
    reports=("trl#6975",),
    scenarios=("tiedllama-*", "gpt2-*"),
)
def test_tied(sync: SyncCell) -> None:
    tied = _tied_names(sync.model)
    got = read_at_once(sync.open().stream())
    engine = bare(sync.scenario).eval()
    unknown = _load(engine, got)
    due = bare(sync.scenario).eval()
    _load(due, {name: target.merged for name, target in sync.targets.items()})
    with torch.no_grad():
        served, wanted = (
            each(input_ids=tokens(torch.device("cpu"))).logits.double() for each in (engine, due)
        )
    apart = float((served - wanted).abs().max() / wanted.abs().max())
    bound = 64 * torch.finfo(next(engine.parameters()).dtype).eps
    still = _tied_names(sync.model)
    sync.evidence.update(tied=tied, tied_after=still, logits_apart=apart, bound=bound, unknown=unknown[:3])
    if apart > bound:
        raise Violation(
            Kind.WRONG,
            f"an engine with tied {' and '.join(tied)} gives logits {apart:.3g} apart (of the largest), {bound:.3g} is"
            " what rounding explains",
        )
    if still != tied:
        raise Violation(Kind.DRIFT, f"the trainer had tied {tied}, and has {still} after the round")


def _load(engine: Any, arrived: Mapping[str, torch.Tensor]) -> list[str]:
    """Copy each tensor where its name says, in order of arrival; names that lead nowhere."""
    places = dict(engine.named_parameters(remove_duplicate=False))
    with torch.no_grad():
        for name, tensor in arrived.items():
            if name in places and places[name].shape == tensor.shape:
                places[name].copy_(tensor)
    return sorted(arrived.keys() - places.keys())


def _tied_names(model: Any) -> list[str]:
    """Names of parameters that are one and the same object as another."""
    everywhere = list(model.named_parameters(remove_duplicate=False))
    count = Counter(id(parameter) for _, parameter in everywhere)
    return [name for name, parameter in everywhere if count[id(parameter)] > 1]
