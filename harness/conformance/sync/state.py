"""The model before and after: what a sync must leave as it was, and putting it back when it did not.

Base bytes, their place in memory, the adapters' own state and ``requires_grad`` are read on this rank's shard, so
looking costs no collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from harness.conformance.sync.layout import is_left_gathered, places

if TYPE_CHECKING:
    from collections.abc import Iterator

_FLAGS = ("merged_adapters", "_active_adapter", "_disable_adapters")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@dataclass(frozen=True)
class _Parameter:
    name: str
    parameter: torch.nn.Parameter
    storages: tuple[torch.Tensor, ...]  # the tensors that hold this rank's bytes, by reference
    pointer: int  # of the first: DeepSpeed makes the whole of a persistent parameter anew at each step
    contents: tuple[torch.Tensor, ...]
    requires_grad: bool

    @classmethod
    def capture(cls, name: str, parameter: torch.nn.Parameter) -> _Parameter:
        storages = tuple(places(parameter))
        contents = tuple(storage.detach().clone() for storage in storages)
        return cls(name, parameter, storages, storages[0].data_ptr(), contents, parameter.requires_grad)

    def differences(self) -> Iterator[str]:
        held = places(self.parameter)
        if is_left_gathered(self.parameter):
            yield f"{self.name} was left gathered"
        elif len(held) != len(self.storages):
            yield f"{self.name} is laid out in another way"
        else:
            for now, content in zip(held, self.contents, strict=True):
                yield from self._compare(now, content)
            if held[0].data_ptr() != self.pointer:
                yield f"{self.name} moved to other memory"
        if self.parameter.requires_grad != self.requires_grad:
            yield f"{self.name}.requires_grad is now {self.parameter.requires_grad}"

    def _compare(self, now: torch.Tensor, content: torch.Tensor) -> Iterator[str]:
        if now.shape != content.shape or now.dtype != content.dtype:
            yield (
                f"{self.name} now holds {now.dtype} {tuple(now.shape)}"
                f" instead of {content.dtype} {tuple(content.shape)}"
            )
        elif not torch.equal(_raw(now), _raw(content)):
            changed = int((now != content).sum())
            yield f"{self.name}: {changed} of {now.numel()} elements changed"

    def restore(self) -> None:
        if is_left_gathered(self.parameter):
            self.parameter.partition(has_been_updated=False)  # type: ignore[attr-defined]
        if hasattr(self.parameter, "ds_tensor"):
            self.parameter.ds_tensor = self.storages[0]
        elif not hasattr(self.parameter, "device_mesh"):
            self.parameter.data = self.storages[0]
        for live, content in zip(places(self.parameter), self.contents, strict=False):
            live.data.copy_(content)
        self.parameter.requires_grad_(self.requires_grad)
        self.parameter.grad = None


@dataclass(frozen=True)
class ModelState:
    """What a model was when ``capture`` was called, with a copy of this rank's bytes."""

    model: Any
    parameters: tuple[_Parameter, ...]
    buffers: dict[str, tuple[torch.Tensor, torch.Tensor]]
    flags: dict[str, dict[str, Any]]
    hooks: dict[str, dict[str, list[int]]]

    @classmethod
    def capture(cls, model: Any) -> ModelState:
        """Copy this rank's bytes and note everything that a sync must leave alone."""
        parameters = tuple(_Parameter.capture(*named) for named in model.named_parameters())
        buffers = {name: (live, live.clone()) for name, live in model.named_buffers()}
        return cls(model, parameters, buffers, _flags(model), _hooks(model))

    def differences(self) -> list[str]:
        """Every difference between the model now and then, as short sentences; empty when there is none."""
        names = [name for name, _ in self.model.named_parameters()]
        found = [] if names == [p.name for p in self.parameters] else ["the model's parameter names changed"]
        for parameter in self.parameters:
            found += parameter.differences()
        held = dict(self.model.named_buffers())
        found += [
            f"buffer {name} changed"
            for name, (live, content) in self.buffers.items()
            if held.get(name) is not live or not torch.equal(live, content)
        ]
        now = _flags(self.model)
        for module, flags in self.flags.items():
            found += [
                f"{module}.{flag} is now {now.get(module, {}).get(flag)!r} instead of {value!r}"
                for flag, value in flags.items()
                if now.get(module, {}).get(flag) != value
            ]
        hooks = _hooks(self.model)
        return found + [
            f"{module or 'the model'} has other {kind.strip('_').replace('_', ' ')} than before"
            for module in self.hooks.keys() | hooks.keys()
            for kind in _HOOKS
            if self.hooks.get(module, {}).get(kind, []) != hooks.get(module, {}).get(kind, [])
        ]

    def restore(self) -> bool:
        """Put everything back; False when the model is beyond that and must be built anew."""
        try:
            for parameter in self.parameters:
                parameter.restore()
            for live, content in self.buffers.values():
                live.copy_(content)
            modules = dict(self.model.named_modules())
            for name, flags in self.flags.items():
                for flag, value in flags.items():
                    setattr(modules[name], flag, list(value) if isinstance(value, list) else value)
            for name, module in modules.items():
                for kind in _HOOKS:
                    hooks = getattr(module, kind)
                    for handle in set(hooks) - set(self.hooks.get(name, {}).get(kind, [])):
                        del hooks[handle]
        except (RuntimeError, AttributeError, KeyError, AssertionError):
            return False
        return not self.differences()


def _raw(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes, by eight where that goes: NaN equals itself, and -0.0 is not 0.0."""
    flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
    return flat.view(torch.int64) if flat.numel() % 8 == 0 and flat.storage_offset() % 8 == 0 else flat


def _flags(model: Any) -> dict[str, dict[str, Any]]:
    """The adapters' own state by module name."""
    state: dict[str, dict[str, Any]] = {}
    for name, module in model.named_modules():
        flags = {flag: getattr(module, flag) for flag in _FLAGS if hasattr(module, flag)}
        if flags:
            state[name] = {k: list(v) if isinstance(v, list) else v for k, v in flags.items()}
    return state


def _hooks(model: Any) -> dict[str, dict[str, list[int]]]:
    """Handles of every module's hooks by module name and kind; modules without hooks are left out."""
    found: dict[str, dict[str, list[int]]] = {}
    for name, module in model.named_modules():
        kinds = {kind: list(getattr(module, kind)) for kind in _HOOKS if getattr(module, kind)}
        if kinds:
            found[name] = kinds
    return found
