"""An engine without vLLM: receivers in threads, behind the control plane that a trainer asks."""

from __future__ import annotations

import threading

import torch

from harness.transfer import TransferFailed
from harness.transfer.orders import Connect, Update
from harness.transfer.receiver import Receiver


class Weights:
    """A model that takes tensors of known names and shapes."""

    def __init__(self, shapes):
        self.shapes = shapes
        self.served = {}
        self.refusal = None
        self.loads = 0
        self.broken = False

    def rehearse(self, named):
        for name, tensor in named:
            if self.shapes.get(name) != tuple(tensor.shape):
                raise ValueError(f"no place for {name} {list(tensor.shape)}")

    def load(self, named):
        self.loads += 1
        if self.broken:
            raise RuntimeError("out of memory")
        self.served = {name: tensor.clone() for name, tensor in named}

    def refuse(self, reason):
        self.refusal = reason


class StandIn:
    """As vLLM: every order goes to all workers, which carry it out side by side."""

    def __init__(self, shapes, size=2):
        self.models = [Weights(shapes) for _ in range(size)]
        self.receivers = [Receiver(model, index + 1) for index, model in enumerate(self.models)]
        self.paused = False
        self.version = "start"
        self.asked = []
        self._threads = []
        self.deaf = False

    def workers(self):
        return len(self.receivers)

    def _all(self, method):
        errors = []

        def one(receiver):
            try:
                method(receiver)
            except TransferFailed as error:
                errors.append(error)

        threads = [threading.Thread(target=one, args=(receiver,)) for receiver in self.receivers]
        for thread in threads:
            thread.start()
        self._threads += threads
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    def settle(self):
        """Return once every worker has done with what it was asked; a trainer that gives up does not wait for them."""
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def connect(self, order):
        self.asked.append("connect")
        if not self.deaf:
            self._all(lambda receiver: receiver.connect(Connect(**order)))

    def start(self):
        self.asked.append("start")
        if any(receiver.is_open for receiver in self.receivers):
            raise TransferFailed("an update is already open")
        self._all(lambda receiver: receiver.start())

    def update(self, order):
        self.asked.append("update")
        self._all(lambda receiver: receiver.receive(Update(**order)))

    def finish(self):
        self.asked.append("finish")
        self._all(lambda receiver: receiver.finish())

    def pause(self):
        self.paused = True

    def resume(self):
        self.paused = False

    def name_version(self, version):
        self.version = version


class ListSource:
    """A source over tensors in memory."""

    def __init__(self, tensors):
        self.tensors = tensors

    def metadata(self):
        return [Meta(name, tensor) for name, tensor in self.tensors.items()]

    def __iter__(self):
        return iter(list(self.tensors.items()))


class Meta:
    def __init__(self, name, tensor):
        self.name, self.dtype, self.shape = name, tensor.dtype, tuple(tensor.shape)


def tensors(value, dtype=torch.float32):
    return {
        "embed": torch.full((64, 16), value, dtype=dtype),
        "norm": torch.full((16,), value, dtype=torch.bfloat16),
        "scale": torch.tensor(value, dtype=dtype),
        "head": torch.arange(1024, dtype=dtype).reshape(64, 16) + value,
    }


SHAPES = {name: tuple(tensor.shape) for name, tensor in tensors(0.0).items()}
