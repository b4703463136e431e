"""What the checks ask of a server over HTTP, each question with a deadline."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from harness.errors import HarnessError


class Unreachable(HarnessError):
    """The server gave no answer: nobody listens, the connection broke, or the deadline passed."""


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: Any
    """Decoded JSON, or the text when it is none."""


@dataclass(frozen=True)
class Completion:
    """What a server made of a prompt.

    Attributes:
        tokens: generated token ids.
        logprobs: log-probability of each generated token.
        prompt_logprobs: log-probability of each prompt token but the first.
    """

    tokens: list[int]
    logprobs: list[float]
    prompt_logprobs: list[float]


class Client:
    """Asks one server; a new connection for each question, so that threads may share it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = str(parts.hostname), parts.port or 80

    def ask(
        self,
        verb: str,
        path: str,
        body: object = None,
        *,
        seconds: float = 60.0,
        headers: dict[str, str] | None = None,
    ) -> Answer:
        """One question.

        Raises:
            Unreachable: no answer within ``seconds``.
        """
        sent = {"Content-Type": "application/json", **(headers or {})}
        link = http.client.HTTPConnection(self._host, self._port, timeout=seconds)
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        try:
            link.request(verb, path, body=data, headers=sent)
            answer = link.getresponse()
            text = answer.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{verb} {path}: {type(error).__name__}: {error}") from error
        finally:
            link.close()
        try:
            return Answer(answer.status, json.loads(text))
        except ValueError:
            return Answer(answer.status, text)

    def health(self, seconds: float = 5.0) -> int:
        """Status of ``/health``."""
        return self.ask("GET", "/health", seconds=seconds).status

    def weight_version(self) -> str:
        """What the engine calls its weights."""
        return str(self.ask("GET", "/weight_info").body["weight_version"])

    def complete(
        self, prompt: list[int], max_tokens: int = 8, *, seconds: float = 60.0, replica: int | None = None
    ) -> Completion:
        """Complete a prompt of token ids greedily.

        Args:
            prompt: token ids.
            max_tokens: how many to generate.
            seconds: deadline.
            replica: which one of a data-parallel server shall answer; the server's choice when None.

        Raises:
            Unreachable: no answer, or one that is an error, with its words.
        """
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": max_tokens,
            "min_tokens": max_tokens,
            "temperature": 0,
            "logprobs": 0,
            "prompt_logprobs": 0,
            "return_token_ids": True,
        }
        headers = {} if replica is None else {"X-data-parallel-rank": str(replica)}
        answer = self.ask("POST", "/v1/completions", body, seconds=seconds, headers=headers)
        if answer.status != http.client.OK:
            raise Unreachable(f"the completion was answered {answer.status}: {answer.body}")
        choice = answer.body["choices"][0]
        rows = choice["prompt_logprobs"][1:]
        scored = [
            row[str(token)]["logprob"]
            for token, row in zip(choice["prompt_token_ids"][1:], rows, strict=True)
        ]
        return Completion(choice["token_ids"], choice["logprobs"]["token_logprobs"], scored)

    def collective(
        self, method: str, *arguments: str, seconds: float = 60.0, timeout: float | None = None
    ) -> Answer:
        """Call a method on every worker (``collective_rpc``); arguments and results are text."""
        body = {"method": method, "args": list(arguments), "timeout": timeout}
        return self.ask("POST", "/collective_rpc", body, seconds=seconds)
