"""Wrong requests: a 4xx that names field, value and limit, and nothing reaches the engine.

CASES AP-01 to AP-04, SE-01, SE-02, and the first half of ER-01.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.server.harness import JSON, Answer, Served
from tests.server.tiny_model import VOCAB

CONTEXT = 512  # of the session's server


@pytest.fixture(autouse=True)
def nothing_reaches_the_engine(served: Served) -> Iterator[None]:
    yield
    assert served.metric("queue_seats_taken") == 0
    served.is_well()


def refused(answer: Answer, param: str | None, *shown: str) -> None:
    assert answer.status == 400, answer.body
    assert answer.error["param"] == param
    assert answer.error["type"] == "invalid_request_error"
    for text in shown:
        assert text in answer.error["message"]


@pytest.mark.parametrize("prompt", ["", [""], [], [[]], None, {}, True, 5, ["a", ""], [[1], []], ["a", 1], [[1], "a"]])
def test_ap01_empty_and_shapeless_prompts(served: Served, prompt: Any) -> None:
    answer = served.complete(prompt)
    assert answer.status == 400
    assert answer.error["param"].startswith("prompt")


def test_ap01_a_missing_prompt(served: Served) -> None:
    refused(served.post("/v1/completions", {}), "prompt", "missing")


BAD_IDS = [-1, VOCAB, VOCAB + 1, 2**31, 2**63, 2**70, 1.5, "abc", True, None]


@pytest.mark.parametrize("token", BAD_IDS)
def test_ap02_prompt_ids(served: Served, token: Any) -> None:
    for prompt in ([97, token], [[97], [token]]):
        answer = served.complete(prompt, min_tokens=1)
        assert answer.status == 400
        assert answer.error["param"].startswith("prompt")


@pytest.mark.parametrize("token", BAD_IDS)
def test_ap02_stop_token_ids(served: Served, token: Any) -> None:
    answer = served.complete(stop_token_ids=[97, token], min_tokens=1)
    assert answer.status == 400
    assert answer.error["param"].startswith("stop_token_ids")


@pytest.mark.parametrize("token", [-1, VOCAB, 2**31, 2**63, 2**70, 1.5, "abc", "true", ""])
def test_ap02_logit_bias_keys(served: Served, token: Any) -> None:
    answer = served.complete(logit_bias={str(token): 1}, min_tokens=1)
    assert answer.status == 400
    assert answer.error["param"].startswith("logit_bias")


@pytest.mark.parametrize("bias", [-101, 100.5, "1", None, True, 1e308])
def test_ap02_logit_bias_values(served: Served, bias: Any) -> None:
    answer = served.complete(logit_bias={"5": bias})
    assert answer.status == 400
    assert answer.error["param"].startswith("logit_bias")
    assert served.complete(logit_bias={"5": -100, "6": 100}).status == 200


@pytest.mark.parametrize("token", BAD_IDS)
def test_ap02_allowed_token_ids(served: Served, token: Any) -> None:
    answer = served.complete(allowed_token_ids=[97, token], min_tokens=1)
    assert answer.status == 400
    assert answer.error["param"].startswith("allowed_token_ids")


@pytest.mark.parametrize("token", BAD_IDS)
@pytest.mark.parametrize("field", ["bad_words", "dry_sequence_breakers"])
def test_ap02_token_ids_of_words(served: Served, field: str, token: Any) -> None:
    answer = served.complete(**{field: ["abc", [97, token]]}, min_tokens=1)
    assert answer.status == 400
    assert answer.error["param"].startswith(field)
    alone = served.complete(**{field: [token]})
    assert alone.status == (200 if isinstance(token, str) else 400)


@pytest.mark.parametrize("value", [0, -1, "5", 2.5, 2**40, True, [1]])
def test_ap03_max_tokens(served: Served, value: Any) -> None:
    refused(served.complete(max_tokens=value), "max_tokens", str(value).replace("True", "true"))


def test_ap03_a_huge_max_tokens_is_clipped(served: Served) -> None:
    usage = served.complete("ab", max_tokens=10**9).json["usage"]
    assert usage["total_tokens"] == CONTEXT


@pytest.mark.parametrize(("length", "expected"), [(20, 492), (510, 2), (511, 1)])
def test_ap04_an_answer_ends_where_the_context_does(served: Served, length: int, expected: int) -> None:
    body = served.complete("x" * length, max_tokens=512).json
    assert body["usage"]["completion_tokens"] == expected
    assert body["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("length", [512, 513, 100_000])
@pytest.mark.parametrize("as_ids", [False, True])
def test_ap04_a_prompt_that_does_not_fit(served: Served, length: int, as_ids: bool) -> None:
    began_s = time.monotonic()
    answer = served.complete([120] * length if as_ids else "x" * length, max_tokens=1)
    assert time.monotonic() - began_s < 0.5
    refused(answer, "prompt", str(CONTEXT))
    assert answer.error["code"] == "context_length_exceeded"
    if as_ids:
        assert str(length) in answer.error["message"]


def test_ap04_strict_servers_refuse_what_others_clip(model: Path) -> None:
    with Served(model, engine={"max_model_len": 64}, server={"strict_max_tokens": True}) as strict:
        answer = strict.complete("x" * 60, max_tokens=5)
        refused(answer, "max_tokens", "60", "5", "65", "64")
        assert answer.error["code"] == "context_length_exceeded"
        assert strict.complete("x" * 60, max_tokens=4).status == 200


@pytest.mark.parametrize("n", [0, -1, 129, 10**6, 2**63, 2**70, "3", 1.5])
def test_se02_n(served: Served, n: Any) -> None:
    answer = served.complete(n=n)
    refused(answer, "n")
    refused(served.complete(best_of=n), "best_of")


def test_se02_prompts_times_n(served: Served) -> None:
    refused(served.complete(["a"] * 129), "prompt", "128")
    refused(served.complete(["a"] * 65, n=2), "n", "130", "128")
    assert served.complete(["a"] * 64, n=2, max_tokens=1).status == 200
    refused(served.complete(["a"] * 65, best_of=2), "best_of", "130", "128")


@pytest.mark.parametrize("prompt", [["a"] * 100_000, [[97]] * 100_000, ['","'] * 100_000, [97] * 1_000_000])
def test_se02_floods_are_refused_before_objects_are_made(served: Served, prompt: Any) -> None:
    body = json.dumps({"prompt": prompt}).encode()
    began_s = time.monotonic()
    answer = served.request("POST", "/v1/completions", body, JSON)
    assert time.monotonic() - began_s < 0.5
    refused(answer, "prompt")


@pytest.mark.parametrize(
    "fields",
    [
        {"logit_bias": {str(i): 1 for i in range(300_000)}},
        {"stop_token_ids": [1] * 1_000_000},
        {"stop": ["x"] * 500_000},
        {"metadata": {"x": "y" * 1_000_000}},
        {"frobnicate": [1] * 1_000_000},
    ],
)
def test_no_other_field_may_be_large(served: Served, fields: dict[str, Any]) -> None:
    body = json.dumps({"prompt": "a", **fields}).encode()
    began_s = time.monotonic()
    answer = served.request("POST", "/v1/completions", body, JSON)
    assert time.monotonic() - began_s < 0.3
    refused(answer, *fields, "bytes", str(128 << 10))


def test_a_flood_of_messages(served: Served) -> None:
    body = json.dumps({"messages": [{"role": "user", "content": ""}] * 200_000}).encode()
    began_s = time.monotonic()
    answer = served.request("POST", "/v1/chat/completions", body, JSON)
    assert time.monotonic() - began_s < 0.3
    refused(answer, "messages", "200000", str(CONTEXT))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1e-300}, "top_p"),  # 0 in f32
        ({"top_p": 1e-46, "temperature": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": ["a", ""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": "x" * 2000}, "stop"),
        ({"stop": 5}, "stop"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"min_tokens": 20, "max_tokens": 10}, "min_tokens"),
        ({"priority": 2**31}, "priority"),
        ({"cache_salt": "x" * 300}, "cache_salt"),
        ({"logit_bias": {str(i): 1 for i in range(259)} | {"-5": 1}}, "logit_bias"),
        ({"stop_token_ids": [1] * 257}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": [[]]}, "bad_words"),
        ({"bad_words": ["x"] * 257}, "bad_words"),
        ({"bad_words": ["x" * 2000]}, "bad_words"),
        ({"bad_words": "x"}, "bad_words"),
        ({"dry_multiplier": -1}, "dry_multiplier"),
        ({"dry_multiplier": "x"}, "dry_multiplier"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_allowed_length": 0}, "dry_allowed_length"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n"),
        ({"dry_sequence_breakers": ["x"] * 33}, "dry_sequence_breakers"),
        ({"dry_sequence_breakers": ["x" * 2000]}, "dry_sequence_breakers"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_threshold": -0.1}, "xtc_threshold"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"echo": 1}, "echo"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": True}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"n": 11, "use_beam_search": True}, "n"),
        ({"beam_width": 11, "use_beam_search": True}, "beam_width"),
        ({"beam_width": 1, "n": 2, "use_beam_search": True}, "beam_width"),
        ({"beam_width": 3}, "beam_width"),
        ({"length_penalty": 11, "use_beam_search": True}, "length_penalty"),
        ({"length_penalty": 2}, "length_penalty"),
        ({"early_stopping": "never", "use_beam_search": True}, "early_stopping"),
        ({"stop": "x", "use_beam_search": True}, "stop"),
        ({"best_of": 2, "use_beam_search": True}, "best_of"),
        ({"stream": True, "use_beam_search": True}, "stream"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": 2**31}, "truncate_prompt_tokens"),
        ({"return_token_ids": 1}, "return_token_ids"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"model": "other"}, "model"),
        ({"model": 5}, "model"),
    ],
)
def test_fields_out_of_their_limits(served: Served, fields: dict[str, Any], param: str) -> None:
    answer = served.complete(**fields)
    assert answer.status == (404 if fields.get("model") == "other" else 400)
    assert answer.error["param"] == param
    value = next(iter(fields.values()))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        assert f"{value:g}" in answer.error["message"] or str(value) in answer.error["message"]


def test_er01_a_wrong_streamed_request_has_a_status_and_no_events(served: Served) -> None:
    for fields in ({"n": 0}, {"prompt": "x" * 600}, {"response_format": {"type": "json_object"}}):
        answer = served.complete(**{"prompt": "abc", "stream": True, **fields})
        assert answer.status == 400
        assert answer.headers["content-type"] == "application/json"
        assert answer.error["message"]


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_schema", "json_schema": {}}},
        {"tools": [{"type": "function"}]},
        {"tool_choice": "required"},
        {"suffix": "end"},
        {"guided_json": {}},
        {"chat_template": "{{ x }}"},
        {"chat_template_kwargs": {"messages": []}},
        {"logits_processors": ["os.system"]},
    ],
)
def test_what_is_not_supported_is_refused_and_not_dropped(served: Served, fields: dict[str, Any]) -> None:
    (name,) = fields
    answer = served.complete(**fields)
    refused(answer, name)
    assert answer.error["code"] == "unsupported_parameter"


def test_values_that_mean_nothing_are_accepted(served: Served) -> None:
    neutral = {"best_of": 1, "echo": False, "suffix": None, "tools": [], "response_format": {"type": "text"}}
    labels = {"user": "someone", "metadata": {"a": "b"}}
    assert (
        served.complete(max_tokens=2, temperature=None, stop=None, logit_bias=None, **neutral, **labels).status == 200
    )


def test_unknown_fields_are_accepted_and_logged_once(served: Served) -> None:
    for _ in range(3):
        assert served.complete(max_tokens=1, frobnicate=7, **{"line\nbreak": 1}).status == 200
    lines = [line for line in served.log.splitlines() if "frobnicate" in line]
    assert len(lines) == 1
    assert "'line\\nbreak'" in lines[0]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "max_tokens": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"a":' * 100_000,
        b"{}}",
    ],
)
def test_bodies_that_are_no_object(served: Served, body: bytes) -> None:
    answer = served.request("POST", "/v1/completions", body, JSON)
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"


def test_a_nul_byte_is_a_character_like_any_other(served: Served) -> None:
    assert served.text("a\0b", max_tokens=3) == "a\0b"


def test_a_body_that_is_too_large(served: Served) -> None:
    answer = served.request("POST", "/v1/completions", b'{"prompt": "' + b"x" * (9 << 20) + b'"}', JSON)
    assert answer.status == 413
    assert str(8 << 20) in answer.error["message"]
    assert "connection" not in answer.headers


def test_a_body_that_is_far_too_large_is_not_read(served: Served) -> None:
    answer = served.request("POST", "/v1/completions", None, {**JSON, "Content-Length": str(1 << 40)})
    assert answer.status == 413
    assert str(1 << 40) in answer.error["message"]
    assert answer.headers["connection"] == "close"


def test_a_body_without_a_length_is_read_up_to_the_limit(model: Path) -> None:
    with Served(model, server={"max_body_bytes": 2000}) as small:
        body = json.dumps({"prompt": "x" * 3000}).encode()
        chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
        headers = {**JSON, "Transfer-Encoding": "chunked"}
        answer = small.request("POST", "/v1/completions", chunked, headers)
        assert answer.status == 413
        small.is_well()


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_only_json_is_read(served: Served, kind: str) -> None:
    answer = served.request("POST", "/v1/completions", b'{"prompt": "a"}', {"Content-Type": kind})
    assert answer.status == 415
    assert kind in answer.error["message"]
    assert "-H 'content-type: application/json'" in answer.error["message"]


def test_a_content_type_may_have_parameters_or_be_missing(served: Served) -> None:
    body = b'{"prompt": "a", "max_tokens": 1}'
    for headers in ({}, {"Content-Type": "Application/JSON; charset=utf-8"}):
        assert served.request("POST", "/v1/completions", body, headers).status == 200


def test_routes_that_do_not_exist(served: Served) -> None:
    for path in ("/v1", "/v2/completions", "/v1/completions/", "//v1/completions", "/v1/../metrics", "/%2e%2e/x"):
        answer = served.get(path)
        assert answer.status == 404, path
        assert answer.error["code"] == "not_found"
    assert served.get("/v1/models/nothing").error["code"] == "model_not_found"


def test_a_base_url_without_v1_is_told_so(served: Served) -> None:
    answer = served.post("/chat/completions", {"messages": []})
    assert answer.status == 404
    assert "ask for /v1/chat/completions" in answer.error["message"]
    assert "/v1" not in served.get("/nope").error["message"]


def test_the_root_says_what_this_is(served: Served) -> None:
    answer = served.get("/")
    assert answer.status == 200
    assert "Octavo" in answer.json["message"]
    assert "/v1" in answer.json["message"]


def test_the_model_is_called_by_its_files_stem_and_answers_to_its_path(served: Served, model: Path) -> None:
    assert [card["id"] for card in served.get("/v1/models").json["data"]] == ["tiny"]
    for name in ("tiny", str(model), None):
        assert served.complete("abc", model=name, max_tokens=1).json["model"] == "tiny"
    assert served.complete("abc", model="other").error["code"] == "model_not_found"


def test_errors_have_codes(served: Served) -> None:
    def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
        return served.post("/v1/chat/completions", {"messages": list(messages), **fields}).error

    user = {"role": "user", "content": "a"}
    too_many = chat(user, logprobs=True, top_logprobs=50)
    assert (too_many["param"], too_many["code"]) == ("top_logprobs", "invalid_value")
    assert "top_logprobs is 50; it must be from 0 to 20" in too_many["message"]
    assert chat({"role": "user"})["code"] == "missing_field"
    assert chat({"role": "usr", "content": "a"})["code"] == "invalid_value"
    assert "last message" in chat(user, continue_final_message=True)["message"]
    assert served.request("POST", "/v1/completions", b"", JSON).error["code"] == "empty_body"
    cut = served.request("POST", "/v1/completions", b'{"prompt": "a', JSON).error
    assert "at its end (byte 13)" in cut["message"]


@pytest.mark.parametrize("fields", [{"reasoning_effort": "low"}, {"verbosity": "high"}, {"service_tier": "flex"}])
def test_hints_without_an_influence_here_are_accepted(served: Served, fields: dict[str, str]) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1, **fields}
    assert served.post("/v1/chat/completions", body).status == 200


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/v1/completions"), ("POST", "/health"), ("DELETE", "/v1/models")]
)
def test_methods_that_do_not_exist(served: Served, method: str, path: str) -> None:
    answer = served.request(method, path)
    assert answer.status == 405
    assert answer.error["code"] == "method_not_allowed"
    assert answer.headers["allow"] in ("GET", "POST")


def test_bytes_that_are_no_http(served: Served) -> None:
    """CASES SE-01: the one listening socket, fed with a pickle."""
    import pickle
    import socket

    for garbage in (pickle.dumps({"a": 1}), b"\0" * 100, b"GET\r\n\r\n", b"POST /v1/completions HTTP/9.9\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", served.port), timeout=5) as line:
            line.sendall(garbage)
            line.shutdown(socket.SHUT_WR)
            assert line.recv(100)[:12] in (b"", b"HTTP/1.1 400")
