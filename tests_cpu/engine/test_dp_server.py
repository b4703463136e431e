"""The example server on two real vLLM workers: it fails in time, says so, mends itself, and mixes nothing up."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from harness.conformance.engine import checkpoint
from harness.conformance.engine.scoring import BOUND, base_of, score
from harness.conformance.engine.stage import PROMPTS
from harness.conformance.sync.scenarios import SyncScenario
from harness.ipc import guarding
from harness.ipc.guard import families, kill_families
from harness.subjects.vllm import Layout, engine_environment, free_port, log_tail
from harness.subjects.vllm_client import Client, Unreachable

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "dp_server.py"
TRAINER = SyncScenario("llama", "lora", "replicated", 1, "fp32")
GREEDY = {"temperature": 0, "max_tokens": 8, "min_tokens": 8}
AT_ONCE_S = 1.0


class Server:
    def __init__(self, folder):
        model = checkpoint.save(TRAINER, folder / "model")
        port = free_port()
        self.log = folder / "dp_server.log"
        command = [sys.executable, str(EXAMPLE), "--model", str(model), "--port", str(port)]
        command += ["--dtype", "float32", "--max-model-len", "64", "--enforce-eager"]
        environment = engine_environment(Layout())
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                command, stdout=output, stderr=output, env=environment, start_new_session=True
            )
        guarding.watch_over(self.process.pid)
        self.client = Client(f"http://127.0.0.1:{port}")

    def health(self, seconds=5):
        answer = self.client.ask("GET", "/health", seconds=seconds)
        return answer.status, answer.body["workers"]

    def wait_healthy(self, seconds=600):
        until = time.monotonic() + seconds
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(Unreachable):
                if self.health()[0] == 200:
                    return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.25)
        pytest.fail(f"the server is not healthy. The end of its log:\n{log_tail(self.log)}")

    def timed(self, path, body):
        begun = time.monotonic()
        answer = self.client.ask("POST", path, body)
        return answer, time.monotonic() - begun

    def close(self):
        left = [one.pid for one in families([self.process.pid])]
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(10)
        kill_families([self.process.pid, *left])
        self.process.wait(10)
        guarding.released(self.process.pid)


@pytest.fixture(scope="module")
def server(stage, tmp_path_factory):
    stage.close()  # one engine at a time
    made = Server(tmp_path_factory.mktemp("dp"))
    try:
        made.wait_healthy()
        yield made
    finally:
        made.close()


def answers(server):
    """Greedy answers to more prompts than there are workers, in the order of the prompts."""
    results, _ = server.timed("/generate", {"prompts": [*PROMPTS, *PROMPTS[::-1]], **GREEDY})
    assert results.status == 200, results.body
    assert [r["prompt_token_ids"] for r in results.body["results"]] == [*PROMPTS, *PROMPTS[::-1]]
    return [r["completions"][0]["token_ids"] for r in results.body["results"]]


def test_answers_come_in_the_order_of_the_prompts_whichever_worker_gave_them(server):
    given = answers(server)
    assert given == [*given[:3], *given[2::-1]]


def test_prompt_logprobs_are_those_of_transformers(server):
    got, _ = server.timed("/prompt_logprobs", {"prompts": list(PROMPTS)})
    for ours, theirs in zip(score(base_of(TRAINER), PROMPTS), got.body["results"], strict=True):
        assert ours == pytest.approx(theirs, abs=BOUND["fp32"])


def test_text_and_chat_go_through_the_tokenizer(server):
    said, _ = server.timed("/chat", {"messages": [[{"role": "user", "content": "w5 w6"}]], **GREEDY})
    assert said.body["results"][0]["prompt_token_ids"] == [5, 6]
    text, _ = server.timed("/generate", {"prompts": ["w5 w6"], **GREEDY})
    assert text.body["results"][0]["completions"] == said.body["results"][0]["completions"]


def test_every_worker_forgets_its_cache_when_asked(server):
    assert server.timed("/reset_prefix_cache", None)[0].body == {"results": [True, True]}


@pytest.mark.parametrize("position", [0, 1])
def test_an_over_long_prompt_is_an_error_at_once_and_the_other_workers_reply_is_nobodys(server, position):
    before = answers(server)
    prompts = [PROMPTS[0], PROMPTS[1]]
    prompts[position] = [5] * 500
    answer, seconds = server.timed("/generate", {"prompts": prompts, **GREEDY})
    assert 400 <= answer.status < 500, answer.body
    assert [failure["worker"] for failure in answer.body["failures"]] == [position]
    assert seconds < AT_ONCE_S
    assert answers(server) == before
    assert server.health()[0] == 200


def test_bad_bodies_are_the_clients_errors(server):
    for body in (b"{", {}, {"prompts": []}, {"prompts": 7}, {"prompts": ["w5"], "no_such_option": 1}):
        assert 400 <= server.timed("/generate", body)[0].status < 500


def test_health_answers_while_workers_are_busy(server):
    busy = threading.Thread(
        target=server.timed,
        args=("/generate", {"prompts": [[5, 6]] * 32, "max_tokens": 60, "ignore_eos": True}),
    )
    busy.start()
    seconds = []
    while busy.is_alive():
        begun = time.monotonic()
        assert server.health()[0] == 200
        seconds.append(time.monotonic() - begun)
        busy.join(0.1)
    assert max(seconds) < AT_ONCE_S


def test_a_killed_worker_is_an_error_at_once_shows_in_health_and_is_replaced(server):
    before = answers(server)
    victim = server.health()[1][1]["pid"]
    outcome = {}

    def ask():
        outcome["answer"], _ = server.timed(
            "/generate", {"prompts": [[5, 6]] * 32, "max_tokens": 60, "ignore_eos": True}
        )
        outcome["at"] = time.monotonic()

    asking = threading.Thread(target=ask)
    asking.start()
    busy = psutil.Process(victim)
    busy.cpu_percent()
    asking.join(0.3)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    asking.join(60)
    assert outcome["answer"].status == 503
    assert outcome["answer"].body["failures"][0]["kind"] == "died"
    assert "SIGKILL" in outcome["answer"].body["error"]
    assert outcome["at"] - killed < 30  # the other worker's reply is collected first, then all is told
    status, workers = server.health()
    assert status == 503
    assert [worker["state"] == "up" for worker in workers] == [True, False]
    server.wait_healthy()
    status, workers = server.health()
    assert workers[1]["pid"] != victim
    assert [worker["replaced"] for worker in workers] == [0, 1]
    assert answers(server) == before


def test_a_request_to_a_dead_worker_is_an_error_at_once(server):
    os.kill(server.health()[1][0]["pid"], signal.SIGKILL)
    answer, seconds = server.timed("/generate", {"prompts": [[5], [6]], **GREEDY})
    assert answer.status == 503
    assert seconds < AT_ONCE_S
    server.wait_healthy()
    assert [worker["replaced"] for worker in server.health()[1]] == [1, 1]


def test_the_workers_of_a_killed_server_end_with_it(server):
    family = [psutil.Process(one.pid) for one in families([server.process.pid])]
    family += [psutil.Process(worker["pid"]) for worker in server.health()[1]]
    server.process.kill()
    server.process.wait(10)
    assert psutil.wait_procs(family, timeout=10)[1] == []
