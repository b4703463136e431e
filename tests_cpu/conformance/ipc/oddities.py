"""Subjects that are no mutants of a pool: they break the frame's expectations of any subject."""

import os
import subprocess
import sys
import time

from harness.subjects.ipc_reference import Reference


class Bare:
    """Offers no more than must be offered, and answers without any process."""

    def start(self, factory, size):
        self.objects = [factory(index) for index in range(size)]

    def call(self, method, *args, timeout):
        return [getattr(each, method)(*args) for each in self.objects]

    def close(self):
        pass


class Exits(Bare):
    def call(self, method, *args, timeout):
        print("last words", file=sys.stderr)
        os._exit(7)


class Hangs(Bare):
    def call(self, method, *args, timeout):
        time.sleep(600)


class RaisesAtClose(Bare):
    def close(self):
        raise RuntimeError("cannot close")


class LeavesAProcess(Bare):
    def start(self, factory, size):
        super().start(factory, size)
        subprocess.Popen(["sleep", "600"], start_new_session=True)


class FailsThenHangsAtClose(Bare):
    def call(self, method, *args, timeout):
        raise RuntimeError("no worker")

    def close(self):
        time.sleep(600)


class Unsupported(Reference):
    @staticmethod
    def supports(scenario):
        return None if scenario.id == "spawn" else "only spawn here"


def act_raises(trial):
    raise ZeroDivisionError("our own mistake")


def act_kills_itself(trial):
    os.kill(os.getpid(), 9)
