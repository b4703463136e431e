"""States of adapters that a trainer can be in: built small, laid out as the scenario is, each with what is due."""

from __future__ import annotations

import warnings
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from harness.conformance.sync.layout import write
from harness.conformance.sync.small import adapted, lay_out, llama, lora, move

if TYPE_CHECKING:
    from collections.abc import Callable

    from harness.conformance.sync.scenarios import SyncScenario


@dataclass(frozen=True)
class State:
    """One state.

    Attributes:
        name: what a person calls it.
        make: the model in that state, whole.
        merged: merge its adapters before the round, and leave them merged.
    """

    name: str
    make: Callable[[SyncScenario], Any]
    merged: bool = False

    def build(self, scenario: SyncScenario, oracle: Callable[[Any], Any]) -> tuple[Any, Any]:
        """The model in this state on this rank, and what the oracle says of it while it is whole; a collective."""
        model = self.make(scenario)
        due = oracle(deepcopy(model))
        laid = lay_out(model, scenario)
        if self.merged:
            _merge_already(laid, due)
        return laid, due


def _merge_already(model: Any, due: Any) -> None:
    """What ``merge_adapter()`` leaves, whichever way the parameters are cut: merged bytes, and the adapters say so."""
    for name, parameter in model.named_parameters():
        plain = name.removeprefix("base_model.model.")
        if ".base_layer." in plain:
            write(parameter, due[plain.replace(".base_layer", "")].merged)
    for module in model.modules():
        if hasattr(module, "merged_adapters"):
            module.merged_adapters = list(module.active_adapters)


def _named(scenario: SyncScenario) -> Any:
    return adapted(llama(scenario), lora(modules_to_save=["norm"]), name="base_layer")


def _like_a_layer(scenario: SyncScenario) -> Any:
    return adapted(llama(scenario), lora(use_dora=True), name="q_proj")


def _several(scenario: SyncScenario) -> Any:
    model = adapted(llama(scenario), lora())
    model.add_adapter("second", lora(r=2, lora_alpha=6, target_modules=["q_proj", "o_proj"]))
    model.base_model.set_adapter(["default", "second"])
    return _moved(model)


def _beside_a_reference(scenario: SyncScenario) -> Any:
    model = adapted(llama(scenario), lora(), name="policy")
    model.add_adapter("ref", lora(r=2))
    model.base_model.set_adapter("policy")
    return _moved(model)


def _combined(scenario: SyncScenario) -> Any:
    model = _several(scenario)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.base_model.add_weighted_adapter(
            ["default", "second"], [0.7, 0.2], "mixed", combination_type="cat"
        )
    model.base_model.set_adapter("mixed")
    return model


def _disabled(scenario: SyncScenario) -> Any:
    model = adapted(llama(scenario), lora())
    model.base_model.disable_adapter_layers()
    return model


def _plain(scenario: SyncScenario) -> Any:
    return adapted(llama(scenario), lora())


def _moved(model: Any) -> Any:
    model.to(next(model.parameters()).dtype)  # adapters that were added are float32 by default
    move(model)
    return model


STATES = (
    State("an adapter called base_layer, with a module saved", _named),
    State("DoRA under the name of a layer", _like_a_layer),
    State("two active adapters", _several),
    State("one active beside a frozen reference", _beside_a_reference),
    State("a weighted combination", _combined),
    State("disabled", _disabled),
    State("merged already", _plain, merged=True),
)
