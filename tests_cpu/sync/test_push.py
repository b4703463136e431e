"""A failure on one rank is the same failure on every rank, soon; the next push is right."""

import pytest
import torch
import torch.distributed as dist
from peft import LoraConfig
from sync_models import adapted, llama, merged, same_bits
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from harness.sync import ModuleGatherSource, SenderGatherSource, SyncFailed, SyncRefused, push, rows
from harness.sync.merging import merge
from harness.sync.pack import Pack

pytestmark = pytest.mark.ranks(2)
SECONDS = 60.0


class TransportBroke(Exception):
    pass


def model_of(**options):
    return adapted(llama(), LoraConfig(r=3, target_modules="all-linear", **options))


@pytest.fixture(scope="module")
def sharded():
    model = model_of()
    expected = merged(model)
    return fully_shard(model), expected


def assert_pushes(source, expected, receivers=(0, 1)):
    taken = []
    sent = push(source, lambda name, tensor: taken.append((name, tensor.clone())), seconds=SECONDS)
    wanted = expected if dist.get_rank() in receivers else []
    assert sent == len(taken) == len(wanted)
    assert all(n == m and same_bits(got, want) for (n, got), (m, want) in zip(taken, wanted, strict=True))


def assert_same_on_every_rank(text):
    texts = [None, None]
    dist.all_gather_object(texts, text)
    assert texts[0] == texts[1]


def breaking_at(position):
    sent = []

    def send(name, tensor):
        if len(sent) == position:
            raise TransportBroke(f"chunk {position}")
        sent.append(name)

    return send


@pytest.mark.parametrize("position", [0, 9, 20])
@pytest.mark.parametrize("breaks", [0, 1])
def test_a_transport_that_breaks(rank, sharded, position, breaks):
    model, expected = sharded
    send = breaking_at(position) if rank.rank == breaks else lambda name, tensor: None
    with pytest.raises(
        SyncFailed, match=rf"rank {breaks} failed sending .*TransportBroke: chunk {position}"
    ) as failed:
        push(ModuleGatherSource(model), send, seconds=SECONDS)
    assert_same_on_every_rank(str(failed.value))
    assert isinstance(failed.value.__cause__, TransportBroke) == (rank.rank == breaks)
    assert_pushes(ModuleGatherSource(model), expected)


def test_a_transport_that_breaks_at_the_only_sender(rank, sharded):
    model, expected = sharded
    with pytest.raises(SyncFailed, match="rank 0 failed sending"):
        push(SenderGatherSource(model), breaking_at(5), seconds=SECONDS)
    assert_pushes(SenderGatherSource(model), expected, receivers=[0])


@pytest.mark.parametrize("breaks", [0, 1])
def test_a_merge_that_fails_on_one_rank(rank, sharded, breaks, monkeypatch):
    model, expected = sharded
    if rank.rank == breaks:
        monkeypatch.setattr(rows.RowMerger, "merge_run", lambda *_: 1 / 0)
    with pytest.raises(SyncFailed, match=f"rank {breaks} failed merging .*ZeroDivisionError"):
        push(ModuleGatherSource(model), None, seconds=SECONDS)
    with pytest.raises(SyncFailed, match=f"rank {breaks} failed merging"):  # without push too
        list(ModuleGatherSource(model))
    monkeypatch.undo()
    assert_pushes(ModuleGatherSource(model), expected)


def test_what_a_failed_merge_leaves_is_never_a_plausible_weight(rank, sharded, monkeypatch):
    model, _ = sharded
    if rank.rank == 1:
        monkeypatch.setattr(rows.RowMerger, "merge_run", lambda *_: 1 / 0)
    taken = {}
    with pytest.raises(SyncFailed):
        push(ModuleGatherSource(model), lambda name, tensor: taken.update({name: tensor}), seconds=SECONDS)
    assert rank.rank == 1 or taken["model.layers.0.self_attn.q_proj.weight"].isnan().any()


def test_a_merge_that_needs_the_whole_layer_fails_on_one_rank(rank, monkeypatch):
    model = model_of(use_dora=True)
    expected = merged(model)
    source = ModuleGatherSource(fully_shard(model))
    if rank.rank == 1:
        monkeypatch.setattr("harness.sync.fetch.merge", lambda *_: 1 / 0)
    with pytest.raises(SyncFailed, match=r"rank 1 failed merging .*ZeroDivisionError"):
        push(source, None, seconds=SECONDS)
    monkeypatch.setattr("harness.sync.fetch.merge", merge)
    assert_pushes(source, expected)


def test_replicas_agree_too(rank):
    model = model_of()
    send = breaking_at(3) if rank.rank == 1 else None
    with pytest.raises(SyncFailed, match="rank 1 failed: TransportBroke: chunk 3"):
        push(ModuleGatherSource(model), send, seconds=SECONDS)
    assert_pushes(ModuleGatherSource(model), merged(model))


def test_a_source_of_the_users_own(rank):
    class Mine:
        def metadata(self):
            return []

        def __iter__(self):
            yield "a", torch.ones(2)
            if rank.rank == 0:
                raise OSError("disk full")

    with pytest.raises(SyncFailed, match="rank 0 failed: OSError: disk full"):
        push(Mine(), None, seconds=SECONDS)


def test_a_refusal_is_the_same_on_every_rank_and_moves_nothing(rank):
    model = llama()
    source = ModuleGatherSource(model)
    model.model.norm.weight = torch.nn.Parameter(torch.zeros(32, dtype=torch.int8), requires_grad=False)
    with pytest.raises(SyncRefused):
        push(source, None, seconds=SECONDS)


def test_an_exchange_that_breaks_off_ends_the_push(rank, monkeypatch):
    waits = []

    def wait(pack, seconds=None):
        settle(pack, seconds)
        waits.append(seconds)
        if len(waits) == 2:
            raise RuntimeError("Timed out waiting 60000ms for recv operation to complete")

    settle = Pack.wait
    own = dist.new_group([0, 1])  # a wait that was given up leaves its group unusable
    source = ModuleGatherSource(fully_shard(model_of(), mesh=DeviceMesh.from_group(own, "cpu")))
    monkeypatch.setattr(Pack, "wait", wait)
    with pytest.raises(SyncFailed, match="broke off: Timed out"):
        push(source, None, seconds=SECONDS)
    assert set(waits) == {SECONDS}
