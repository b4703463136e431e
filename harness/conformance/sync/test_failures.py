"""What goes wrong, and how it ends: a consumer that raises, a rank that fails, a model that cannot be synced right."""

from __future__ import annotations

import gc
import json
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed import distributed_c10d

from harness.conformance.check import check
from harness.conformance.sync.consumer import discard, read_at_once
from harness.conformance.sync.scenarios import SPREAD
from harness.conformance.sync.subject import Round, drive, loop
from harness.conformance.sync.traffic import recorded
from harness.conformance.sync.unfit import UNFIT, Unfit
from harness.conformance.verdict import Kind, SubjectRaised, Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.conformance.sync.stage import SyncCell

# Of the yields after which a consumer raises, where weights are sharded; where they are not, it raises after every one.
# Prime to the tensors of a layer, so that each kind of them is met in some layer.
STRIDE = 5
DEADLINE = 8.0  # seconds from one rank's failure to the end on all


class ConsumerFailed(Exception):
    """What a consumer raises here."""


@check(
    "sync/consumer-raises",
    must=(
        "A consumer that raises after any yield, on every rank alike, and closes nothing itself, MUST find the model as"
        " it was before the round once it has let go of the source, and the next round MUST be right."
    ),
    since="0.1",
    reports=("trl#6796", "trl#2840", "trl#2877"),
    scenarios=SPREAD,
)
def test_consumer_raises(sync: SyncCell) -> None:
    total = len(sync.targets)
    step = 1 if sync.scenario.sharding == "replicated" else STRIDE
    stops = sorted({*range(1, total + 1, step), total})
    sync.evidence.update(yields=total, raised_after=len(stops))
    drifted: dict[int, list[str]] = {}
    for stop in stops:  # to the end, whatever is found: the other ranks go on too
        _raise_after(sync, stop)
        found = sync.differences()
        if found and not drifted and gc.collect():  # what holds itself alive goes here
            found = sync.differences()
        if found:
            drifted.setdefault(stop, found)
            sync.rewind()
    if drifted:
        stop, found = next(iter(drifted.items()))
        raise Violation(
            Kind.DRIFT,
            f"the consumer raised after yield {stop} of {total}: {len(found)} difference(s), the first: {found[0]}",
        )
    _judge_next(sync, "one whose consumer raised")


def _raise_after(sync: SyncCell, stop: int) -> None:
    def each(index: int) -> None:
        if index == stop:
            raise ConsumerFailed(f"yield {index}")

    source = sync.open().source
    try:
        loop(source, each)
    except ConsumerFailed:
        pass
    except Exception as error:
        raise SubjectRaised(f"a pass up to yield {stop}", error) from error


def _judge_next(sync: SyncCell, before: str) -> None:
    after = read_at_once(sync.open().stream())
    wrong = [n for n, target in sync.targets.items() if n not in after or not target.accepts(after[n])]
    sync.evidence["wrong_in_next_round"] = len(wrong)
    if wrong:
        raise Violation(
            Kind.WRONG, f"the round after {before}: {len(wrong)} tensor(s) wrong, such as {wrong[0]}"
        )


@check(
    "sync/rank-fails",
    must=(
        f"A transport that raises on one rank MUST end the round on every rank by an exception within {DEADLINE:.0f}"
        " seconds; the model is then as it was before, and the next round right."
    ),
    since="0.1",
    reports=("trl#6796", "trl#6913"),
    scenarios=("*x2-*", "*x4-*"),
)
def test_rank_fails(sync: SyncCell) -> None:
    push = sync.offered("push")
    total, last = len(sync.targets), sync.scenario.world_size - 1
    ends: dict[str, Any] = {}
    drifted: list[str] = []
    for failing, place in ((0, 1), (last, total // 2), (0, total)):
        label = f"rank {failing} at tensor {place}"
        ends[label] = _push_with_failure(sync, push, failing, place)
        silent = [rank for rank, end in enumerate(ends[label]) if not end["raised"]]
        if silent:
            raise Violation(
                Kind.SILENT, f"{label} failed, and the round ended without an exception on ranks {silent}"
            )
        drifted += [f"after {label} failed: {difference}" for difference in sync.differences()]
    sync.evidence["ends"] = ends
    if drifted:
        raise Violation(Kind.DRIFT, f"{len(drifted)} difference(s), the first {drifted[0]}")
    _judge_next(sync, "one that a rank failed in")


def _push_with_failure(sync: SyncCell, push: Any, failing: int, place: int) -> list[dict[str, Any]]:
    """One driven round in which one rank's transport raises; how it ended on every rank."""
    sent = 0

    def send(name: str, tensor: torch.Tensor) -> None:
        nonlocal sent
        del tensor
        sent += 1
        if sync.stage.rank == failing and sent == place:
            raise ConsumerFailed(f"the transport broke at {name}")

    begun, raised = time.monotonic(), ""
    with _limit(DEADLINE):
        try:
            drive(push, sync.open().source, send, DEADLINE)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is how the round ended here
            raised = f"{type(error).__name__}: {error}"[:200]
    end = {"raised": raised, "seconds": round(time.monotonic() - begun, 2)}
    ends = _tell(f"{failing}/{place}", end)
    late = [rank for rank, each in enumerate(ends) if each["seconds"] > DEADLINE]
    if late:
        left = SubjectRaised(
            f"rank {failing} failed at tensor {place}: ranks {late} waited {DEADLINE} s and", _cause(ends)
        )
        left.kind = Kind.HANG
        raise left
    return ends


def _tell(label: str, end: dict[str, Any]) -> list[dict[str, Any]]:
    """Exchange how a round ended through the store: after a failure the group's collectives cannot be trusted."""
    store = distributed_c10d._get_default_store()  # noqa: SLF001 - the one that the ranks met at
    turn = store.add(f"rank-fails/{label}/{torch.distributed.get_rank()}", 1)
    ranks = range(torch.distributed.get_world_size())
    store.set(f"rank-fails/{label}/{turn}/{torch.distributed.get_rank()}", json.dumps(end))
    keys = [f"rank-fails/{label}/{turn}/{rank}" for rank in ranks]
    store.wait(keys, timedelta(seconds=3 * DEADLINE))
    return [json.loads(store.get(key)) for key in keys]


def _cause(ends: list[dict[str, Any]]) -> Exception:
    return RuntimeError(
        "; ".join(f"rank {rank}: {end['raised'] or 'nothing'}" for rank, end in enumerate(ends))
    )


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """A time limit for the default group's collectives that begin in a block."""
    set_limit, group = distributed_c10d._set_pg_timeout, torch.distributed.group.WORLD  # noqa: SLF001
    set_limit(timedelta(seconds=seconds), group)
    try:
        yield
    finally:
        set_limit(distributed_c10d.default_pg_timeout, group)


@check(
    "sync/refuses",
    must=(
        "A model that cannot be synced right (a base of packed integers, a method that merges into no weight, adapters"
        " on one half of a tied pair, an active adapter that does not exist) MUST be refused before any collective, by"
        " an exception that names what is wrong."
    ),
    since="0.1",
    reports=("trl#4973", "trl#3466", "trl#3654"),
    scenarios=("*-lora-*",),
)
def test_refuses(sync: SyncCell) -> None:
    told: dict[str, str] = {}
    complaints = []
    for unfit in UNFIT:  # to the end, whatever is found: the other ranks go on too
        model = unfit.build(sync.scenario)
        with recorded() as begun:
            try:
                discard(Round(sync.subject, model, sync.context).stream())
            except (SubjectRaised, Violation) as refusal:
                told[unfit.name] = str(refusal.__cause__ or refusal)
        complaints.append(_judge_refusal(unfit, told.get(unfit.name), len(begun)))
    sync.evidence["told"] = told
    for complaint in filter(None, complaints):
        raise complaint


def _judge_refusal(unfit: Unfit, told: str | None, collectives: int) -> Violation | None:
    if told is None:
        return Violation(
            Kind.SILENT, f"{unfit.name}: a round was yielded as if the model could be synced right"
        )
    if not any(word in told for word in unfit.words):
        return Violation(
            Kind.SILENT,
            f"{unfit.name}: raised without naming what is wrong ({' or '.join(unfit.words)}): {told[:200]}",
        )
    if collectives:
        return Violation(
            Kind.RAISED, f"{unfit.name}: refused only after {collectives} collective(s): {told[:200]}"
        )
    return None
