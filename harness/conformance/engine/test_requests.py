"""The request path: whatever is asked, there is an answer or an error in time, and later answers are right."""

from __future__ import annotations

import json
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.conformance.check import check
from harness.conformance.engine.stage import PROMPTS
from harness.conformance.verdict import Kind, Violation
from harness.subjects.vllm_client import Unreachable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.conformance.engine.stage import EngineCell

pytestmark = pytest.mark.timeout(900)

REQUEST_S = 15.0
"""Deadline of a request that has nothing to compute."""
BAD: tuple[tuple[str, Any], ...] = (
    ("no JSON", b"{"),
    ("a prompt that is a number", {"model": "tiny", "prompt": 7}),
    ("a token beyond the vocabulary", {"model": "tiny", "prompt": [5, 1_000_000], "max_tokens": 1}),
    ("a negative token", {"model": "tiny", "prompt": [5, -3], "max_tokens": 1}),
    ("an empty prompt", {"model": "tiny", "prompt": [], "max_tokens": 1}),
    ("a negative number of tokens", {"model": "tiny", "prompt": [5], "max_tokens": -1}),
    ("an unknown model", {"model": "other", "prompt": [5], "max_tokens": 1}),
)


@check(
    "engine/over-long",
    must="A prompt that is longer than the model's context MUST be answered with an error at once.",
    since="0.1",
    reports=("trl#3433",),
)
def test_over_long(engine: EngineCell) -> None:
    _require_refusal(engine, "an over-long prompt", {"model": "tiny", "prompt": [5] * 500, "max_tokens": 4})
    _require_well(engine)


@check(
    "engine/malformed",
    must="A malformed request MUST be answered with an error of the client's at once, and harm no other.",
    since="0.1",
)
def test_malformed(engine: EngineCell) -> None:
    for what, body in BAD:
        _require_refusal(engine, what, body)
    _require_well(engine)


@check(
    "engine/cancelled",
    must="A client that goes away in the middle of its answer MUST NOT keep others from theirs.",
    since="0.1",
)
def test_cancelled(engine: EngineCell) -> None:
    body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": 40, "stream": True, "ignore_eos": True}
    for _ in range(8):
        _ask_and_leave(engine.server.port, json.dumps(body).encode())
    _require_well(engine)
    running = list(_running(engine))
    engine.evidence["looks_until_idle"] = len(running)
    if running[-1]:
        raise Violation(
            Kind.LEAK, f"{running[-1]:.0f} requests whose clients have left are still being worked on"
        )


def _ask_and_leave(port: int, body: bytes) -> None:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    head += "Content-Type: application/json\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=REQUEST_S) as link:
        link.sendall(head.encode() + body)
        link.recv(1)  # the answer has begun


def _running(engine: EngineCell) -> Iterator[float]:
    """Looks at how many requests run, until none does or the deadline has passed."""
    until = time.monotonic() + REQUEST_S
    while True:
        text = str(engine.server.client.ask("GET", "/metrics", seconds=REQUEST_S).body)
        rows = [row for row in text.splitlines() if row.startswith("vllm:num_requests_running")]
        count = sum(float(row.rpartition(" ")[2]) for row in rows)
        yield count
        if not count or time.monotonic() > until:
            return


@check(
    "engine/pairing",
    must=(
        "After a call that failed on one worker, the next call MUST get its own answers, and a failure MUST be told"
        " by the call that failed."
    ),
    since="0.1",
    reports=("vllm#57846",),
)
def test_pairing(engine: EngineCell) -> None:
    try:
        workers = engine.scenario.layout.workers
        for failing in sorted({0, workers - 1}, reverse=True):
            _require_pairing(engine, failing)
    except Violation:
        engine.stage.drop_server()  # its answers stay shifted for good
        raise


def _require_pairing(engine: EngineCell, failing: int) -> None:
    client = engine.server.client
    replying = engine.scenario.layout.tensor_parallel  # with several replicas vLLM answers for the first
    failed = client.collective("probe_raise", str(failing), "failing", seconds=REQUEST_S)
    engine.evidence[f"failed_on_worker_{failing}"] = failed.status
    if failed.status == 200:
        raise Violation(
            Kind.SILENT, f"a call that failed on worker {failing} was answered 200: {failed.body}"
        )
    for turn in range(3):
        said = client.collective("probe_echo", f"turn{turn}", seconds=REQUEST_S)
        got = sorted(said.body["results"]) if said.status == 200 else [f"{said.status}: {said.body}"]
        due = sorted(f"turn{turn}@{worker}" for worker in range(replying))
        if got != due:
            engine.evidence.update(due=due, got=got)
            raise Violation(
                Kind.STALE,
                f"{turn + 1} call(s) after one that failed on worker {failing}: expected {due}, got {got}",
            )


@check(
    "engine/payload",
    must="Arguments and results around 16 MiB MUST arrive whole.",
    since="0.1",
)
def test_payload(engine: EngineCell) -> None:
    client = engine.server.client
    for size in ((16 << 20) - 64, 16 << 20, (16 << 20) + 64):
        told = client.collective("probe_length", "x" * size, seconds=60)
        sent = client.collective("probe_payload", str(size), seconds=60)
        lengths = [len(each) for each in sent.body["results"]] if sent.status == 200 else [sent.body]
        if (
            told.status != 200
            or {int(each) for each in told.body["results"]} != {size}
            or set(lengths) != {size}
        ):
            raise Violation(Kind.WRONG, f"{size} bytes were sent, {told.body} and {lengths} arrived")
    engine.evidence["largest_bytes"] = (16 << 20) + 64


def _require_refusal(engine: EngineCell, what: str, body: object) -> None:
    begun = time.monotonic()
    try:
        answer = engine.server.client.ask("POST", "/v1/completions", body, seconds=REQUEST_S)
    except Unreachable as error:
        raise Violation(Kind.HANG, f"{what}: {error}") from error
    engine.evidence[what] = [answer.status, round(time.monotonic() - begun, 3)]
    if not 400 <= answer.status < 500:
        raise Violation(Kind.WRONG, f"{what} was answered {answer.status}, expected 4xx: {answer.body}")


def _require_well(engine: EngineCell) -> None:
    """The server answers others as it did."""
    client = engine.server.client
    health = client.health()
    if health != 200:
        raise Violation(Kind.DIED, f"the server's health is {health} afterwards")
    first, second = client.complete(PROMPTS[0]), client.complete(PROMPTS[0])
    if first.tokens != second.tokens:
        raise Violation(Kind.WRONG, f"one prompt has two greedy answers: {first.tokens}, {second.tokens}")
