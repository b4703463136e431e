"""How a sync subject is driven: opened once per round on every rank, its stream checked for form as it passes.

A subject is a callable ``(model, context)``. What it offers beside its rounds it carries as attributes, each of which
some check is about: ``push(source, send, seconds)`` drives a round on all ranks, ``to_sender(model, context)`` returns
a source that gives tensors to rank 0 alone, ``buckets(source, nbytes)`` packs a round. ``supports(scenario)`` declines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from harness.conformance.verdict import Kind, SubjectRaised, Violation


@dataclass(frozen=True)
class SyncContext:
    """What a sync subject is told about where it runs.

    Attributes:
        sharding: ``replicated``, ``ddp``, ``zero3`` or ``fsdp2``; ``model`` is what the engine or DDP wraps.
        device: where the model is.
        rank: this process's rank.
        world_size: number of ranks, all of which call the subject and iterate.
    """

    sharding: str
    device: torch.device
    rank: int
    world_size: int


Send = Callable[[str, torch.Tensor], object]
SyncSubject = Callable[[Any, SyncContext], Iterable[tuple[str, torch.Tensor]]]


class Round:
    """One round of a subject: the object it returned, and passes over it.

    Every exception of the subject's own code becomes a ``SubjectRaised`` that names the stage; what is not a pair of
    name and tensor becomes a ``Violation``.
    """

    def __init__(self, subject: SyncSubject, model: Any, context: SyncContext) -> None:
        try:
            self.source: Any = subject(model, context)
        except Exception as error:
            raise SubjectRaised("starting a round", error) from error

    def stream(self) -> Iterator[tuple[str, torch.Tensor]]:
        """A pass over the source. Closing it closes the subject's own iterator."""
        try:
            iterator = iter(self.source)
        except TypeError:
            raise Violation(
                Kind.BROKEN,
                "expected a WeightSource or an iterable of (name, tensor) pairs,"
                f" got {type(self.source).__name__}",
            ) from None
        except Exception as error:
            raise SubjectRaised("iter(source)", error) from error
        try:
            index = 0
            while True:
                try:
                    pair = _pair(next(iterator), index)
                except StopIteration:
                    return
                except Violation:
                    raise
                except Exception as error:
                    raise SubjectRaised(f"yield {index}", error) from error
                yield pair
                del pair  # or this frame would keep a tensor alive while the subject makes the next one
                index += 1
        finally:
            _close(iterator)

    def metadata(self) -> list[tuple[str, torch.dtype, tuple[int, ...]]] | None:
        """What the source declares beforehand as ``(name, dtype, shape)``; None when it declares nothing."""
        method = getattr(self.source, "metadata", None)
        if method is None:
            return None
        try:
            declared = list(method() if callable(method) else method)
        except Exception as error:
            raise SubjectRaised("metadata()", error) from error
        try:
            return [(str(each.name), _dtype(each.dtype), tuple(each.shape)) for each in declared]
        except (AttributeError, TypeError, KeyError) as error:
            raise Violation(
                Kind.WRONG, f"metadata() must list entries with .name, .dtype and .shape: {error}"
            ) from error


# The subject has control below, in frames of this file: that is how a rank that never comes back is told apart.


def drive(
    push: Callable[..., object], source: Any, send: Callable[[str, torch.Tensor], object], seconds: float
) -> None:
    """Let the subject drive a round on this rank."""
    push(source, send, seconds)


def loop(source: Any, each: Callable[[int], None]) -> None:
    """Consume a round as a trainer does, with a plain loop over the subject's own iterator, which nobody closes."""
    for index, _ in enumerate(source, start=1):
        each(index)


def packed(pack: Callable[[Any, int], Iterable[Any]], source: Any, nbytes: int) -> Iterator[Any]:
    """The buckets that a subject packs a round into."""
    try:
        yield from pack(source, nbytes)
    except Exception as error:
        raise SubjectRaised("packing a round into buckets", error) from error


def _pair(item: object, index: int) -> tuple[str, torch.Tensor]:
    if not (isinstance(item, tuple) and len(item) == 2):
        raise Violation(
            Kind.BROKEN, f"yield {index}: expected a (name, tensor) pair, got {type(item).__name__}"
        )
    name, tensor = item
    if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
        raise Violation(
            Kind.BROKEN,
            f"yield {index}: expected (str, torch.Tensor),"
            f" got ({type(name).__name__}, {type(tensor).__name__})",
        )
    return name, tensor


def _dtype(value: object) -> torch.dtype:
    return value if isinstance(value, torch.dtype) else getattr(torch, str(value).removeprefix("torch."))


def _close(iterator: Any) -> None:
    close = getattr(iterator, "close", None)
    if close is None:
        return
    try:
        close()
    except Exception as error:
        raise SubjectRaised("closing the iterator", error) from error
