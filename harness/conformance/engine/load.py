"""Clients that keep asking while something happens to the server."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from harness.errors import HarnessError
from harness.subjects.vllm_client import Unreachable

if TYPE_CHECKING:
    from harness.subjects.vllm_client import Client, Completion

ANSWER_S = 60.0
"""Deadline of one request."""


@dataclass(frozen=True)
class Asked:
    """One request: its prompt, and its answer or what came instead."""

    prompt: list[int]
    answer: Completion | None
    failure: str
    seconds: float


class Load:
    """Threads that ask, each as soon as it has its answer, until the block ends.

    Args:
        client: the server.
        prompts: one thread for each.
        tokens: to generate in each answer.
    """

    def __init__(self, client: Client, prompts: list[list[int]], tokens: int = 4) -> None:
        self._client, self._tokens = client, tokens
        self._over = threading.Event()
        self._answered = threading.Event()
        self.asked: list[Asked] = []
        self._threads = [
            threading.Thread(target=self._ask, args=(prompt,), daemon=True) for prompt in prompts
        ]

    def _ask(self, prompt: list[int]) -> None:
        while not self._over.is_set():
            begun = time.monotonic()
            answer, failure = None, ""
            try:
                answer = self._client.complete(prompt, self._tokens, seconds=ANSWER_S)
            except Unreachable as error:
                failure = str(error)
                self._over.wait(0.2)  # a server that is gone refuses at once, again and again
            self.asked.append(Asked(prompt, answer, failure, time.monotonic() - begun))
            self._answered.set()

    def wait_until_running(self) -> None:
        """Return when a first answer has come.

        Raises:
            HarnessError: none came.
        """
        if not self._answered.wait(ANSWER_S):
            raise HarnessError(f"no request was answered within {ANSWER_S:.0f} s, before anything was done")

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(ANSWER_S + 10)

    @property
    def unanswered(self) -> int:
        """Requests that have not ended although they had their deadline and more."""
        return sum(thread.is_alive() for thread in self._threads)
