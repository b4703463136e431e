"""A transfer moves all or nothing, tells every side the same sentence, and the next one succeeds."""

import socket
import time

import pytest
import torch

from harness.transfer import HttpEngine, TrainerEngine, TransferFailed
from tests_cpu.transfer.engine_stand_in import SHAPES, ListSource, StandIn, tensors


@pytest.fixture
def engine():
    engine = StandIn(SHAPES)
    yield engine
    engine.settle()  # or what its workers say would be in the next test's log


def sender(engine, source, seconds=5.0):
    return TrainerEngine(source, engine, seconds=seconds, chunk_bytes=1000)


def served(engine):
    return [{name: tensor.clone() for name, tensor in model.served.items()} for model in engine.models]


def assert_serves(engine, expected):
    for model in engine.models:
        assert list(model.served) == list(expected)
        for name, tensor in expected.items():
            assert torch.equal(model.served[name], tensor)


def assert_next_succeeds(engine, value=9.0):
    trainer = sender(engine, ListSource(tensors(value)))
    sent = trainer.sync("next")
    trainer.close()
    assert sent.nbytes == sum(t.nbytes for t in tensors(value).values())
    assert_serves(engine, tensors(value))
    assert engine.version == "next"
    assert not engine.paused
    assert all(model.refusal is None for model in engine.models)


def test_every_worker_serves_what_the_source_yields_round_after_round(engine):
    source = ListSource(tensors(1.0))
    trainer = sender(engine, source)
    for value in (1.0, 2.0, 1.0):
        source.tensors = tensors(value)
        sent = trainer.sync(str(value))
        assert_serves(engine, tensors(value))
        assert engine.version == str(value)
        assert sent.chunks == -(-sent.nbytes // 1000)
    assert engine.asked.count("connect") == 1
    trainer.close()


class Breaking(ListSource):
    def __init__(self, value, after):
        super().__init__(tensors(value))
        self.after = after

    def __iter__(self):
        for index, pair in enumerate(self.tensors.items()):
            if index == self.after:
                raise RuntimeError("the trainer fell over")
            yield pair


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_source_that_raises_leaves_the_old_weights_and_the_next_transfer_succeeds(engine, after):
    assert_next_succeeds(engine, 1.0)
    with pytest.raises(TransferFailed, match="trainer rank 0: RuntimeError: the trainer fell over"):
        sender(engine, Breaking(2.0, after)).sync("2")
    assert_serves(engine, tensors(1.0))
    assert engine.version == "next"
    assert_next_succeeds(engine)


def test_a_source_that_disagrees_with_its_metadata_is_refused_on_both_sides(engine):
    source = ListSource(tensors(1.0))
    declared = source.metadata()
    source.metadata = lambda: declared[::-1]
    with pytest.raises(TransferFailed, match="tensor 0: metadata"):
        sender(engine, source).sync("1")
    assert served(engine) == [{}, {}]
    assert_next_succeeds(engine)


def test_what_the_model_does_not_take_is_refused_before_its_weights_are_touched(engine):
    named = {**tensors(1.0), "unknown": torch.zeros(3)}
    with pytest.raises(TransferFailed, match=r"engine worker 0: ValueError: no place for unknown \[3\]"):
        sender(engine, ListSource(named)).sync("1")
    assert [model.loads for model in engine.models] == [0, 0]
    assert_next_succeeds(engine)


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_that_cannot_stage_a_chunk_ends_the_transfer_everywhere(engine, worker):
    receiver = engine.receivers[worker]

    def fails(*_):
        raise MemoryError("no room")

    receiver._place = fails
    with pytest.raises(TransferFailed, match=f"engine worker {worker}: MemoryError: no room"):
        sender(engine, ListSource(tensors(1.0))).sync("1")
    assert served(engine) == [{}, {}]
    del receiver._place
    assert_next_succeeds(engine)


def test_workers_log_the_sentence_that_the_trainer_raises(engine, caplog):
    with pytest.raises(TransferFailed) as raised:
        sender(engine, Breaking(2.0, 2)).sync("2")
    engine.settle()
    logged = [record.getMessage() for record in caplog.records]
    assert logged == [f"weights 2 were not received: {raised.value}"] * 2


def test_a_load_that_fails_on_one_worker_makes_all_refuse_to_serve_until_one_succeeds(engine):
    assert_next_succeeds(engine, 1.0)
    engine.models[1].broken = True
    with pytest.raises(
        TransferFailed, match="engine worker 1: RuntimeError: out of memory: it refuses to serve"
    ):
        sender(engine, ListSource(tensors(2.0))).sync("2")
    assert engine.paused
    assert all("out of memory" in model.refusal for model in engine.models)
    engine.models[1].broken = False
    assert_next_succeeds(engine)


def test_workers_that_never_come_are_missed_within_the_limit(engine):
    engine.deaf = True
    begun = time.monotonic()
    with pytest.raises(TransferFailed, match="engine worker 0 did not come within 1 s"):
        sender(engine, ListSource(tensors(1.0)), seconds=1.0).sync("1")
    assert time.monotonic() - begun < 10
    engine.deaf = False
    assert_next_succeeds(engine)


def test_a_trainer_that_stops_sending_is_given_up_within_the_limit_and_another_one_succeeds(engine):
    assert_next_succeeds(engine, 1.0)
    abandoned = sender(engine, ListSource(tensors(2.0)), seconds=1.0)
    abandoned._stream = lambda _manifest: time.sleep(0)  # opens the update, sends nothing
    abandoned._commit = lambda _version: abandoned._call.join(10)
    abandoned._break_off = lambda _message: None
    abandoned.sync("2")
    assert_serves(engine, tensors(1.0))
    assert all(receiver.is_open for receiver in engine.receivers)  # nobody has told the engine to close it
    assert_next_succeeds(engine)


@pytest.mark.parametrize("phase", ["connect", "start", "update", "pause"])
def test_a_control_plane_that_fails_in_any_phase_leaves_the_old_weights(engine, phase):
    assert_next_succeeds(engine, 1.0)

    def fails(*_):
        raise TransferFailed(f"{phase} answered 500")

    setattr(engine, phase, fails)
    with pytest.raises(TransferFailed, match=f"{phase} answered 500"):
        sender(engine, ListSource(tensors(2.0)), seconds=2.0).sync("2")
    assert_serves(engine, tensors(1.0))
    assert not engine.paused
    delattr(engine, phase)
    assert_next_succeeds(engine)


def test_an_update_whose_order_moves_nothing_is_not_taken_for_a_transfer(engine):
    engine.update = lambda _order: None  # answers well, and no worker listens
    with pytest.raises(TransferFailed, match=r"did not answer within 1 s|is gone"):
        sender(engine, ListSource(tensors(1.0)), seconds=1.0).sync("1")
    assert served(engine) == [{}, {}]
    del engine.update
    assert_next_succeeds(engine)


def test_a_server_that_is_not_there_is_named():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(TransferFailed, match=f"127.0.0.1:{port}/get_world_size.*refused"):
        TrainerEngine(ListSource(tensors(1.0)), HttpEngine(f"http://127.0.0.1:{port}", 2.0)).sync("1")


def test_a_server_that_accepts_and_never_answers_is_given_up():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TransferFailed, match=r"no answer within 0.3 s"):
            TrainerEngine(ListSource(tensors(1.0)), HttpEngine(url, 0.3)).sync("1")


def test_bad_arguments_are_refused_at_the_door(engine):
    with pytest.raises(ValueError, match="expected the address of a server"):
        HttpEngine("localhost:8000")
    with pytest.raises(ValueError, match="must be positive"):
        TrainerEngine(ListSource(tensors(1.0)), engine, chunk_bytes=0)


def test_a_control_plane_that_fails_at_the_finish_is_heard_at_once_and_the_engine_stays_paused(engine):
    assert_next_succeeds(engine, 1.0)

    def fails():
        raise TransferFailed("finish answered 500")

    engine.finish = fails
    begun = time.monotonic()
    with pytest.raises(TransferFailed, match=r"finish answered 500 \(the engine stays paused"):
        sender(engine, ListSource(tensors(2.0)), seconds=30.0).sync("2")
    assert time.monotonic() - begun < 15
    assert engine.paused
    assert_serves(engine, tensors(1.0))
    del engine.finish
    assert_next_succeeds(engine)


def test_a_control_plane_that_breaks_in_a_way_of_its_own_is_told_in_its_own_words(engine):
    def breaks():
        raise RuntimeError("not what the protocol knows")

    engine.finish = breaks
    with pytest.raises(TransferFailed, match="finish: RuntimeError: not what the protocol knows"):
        sender(engine, ListSource(tensors(2.0))).sync("2")
    del engine.finish
    assert_next_succeeds(engine)
