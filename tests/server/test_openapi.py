"""Answers, chunks and errors against OpenAI's own description of its API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.server.harness import Served

FILE = Path(__file__).parents[3] / "shared" / "data" / "openai_openapi_subset.json"
pytestmark = pytest.mark.skipif(not FILE.exists(), reason="OpenAI's description is not beside this checkout")

COMPLETIONS = {"prompt": ["abc", "é<|endoftext|>"], "max_tokens": 5}
CHAT = {"messages": [{"role": "user", "content": "hé"}], "max_tokens": 25}
ASKED = [{}, {"n": 2}, {"stop": "c"}, {"stream_options": {"include_usage": True}}]
COMPLETION_LOGPROBS, CHAT_LOGPROBS = {"logprobs": 2}, {"logprobs": True, "top_logprobs": 2}


@pytest.fixture(scope="module")
def description() -> Any:
    return with_nulls(json.loads(FILE.read_text()))


def with_nulls(node: Any) -> Any:
    """OpenAPI's old `nullable`, which the file still uses here and there, in the words of JSON Schema."""
    if isinstance(node, list):
        return [with_nulls(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {name: with_nulls(value) for name, value in node.items() if name != "nullable"}
    return {"anyOf": [plain, {"type": "null"}]} if node.get("nullable") is True else plain


def check(description: Any, name: str, value: Any) -> None:
    schema = {"$ref": f"#/components/schemas/{name}", "components": description["components"]}
    jsonschema.Draft202012Validator(schema).validate(value)


def without_stream_options(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "stream_options"}


@pytest.mark.parametrize("fields", [*ASKED, COMPLETION_LOGPROBS])
def test_completions(served: Served, description: Any, fields: dict[str, Any]) -> None:
    body = {**COMPLETIONS, **fields}
    check(description, "CreateCompletionResponse", served.post("/v1/completions", without_stream_options(body)).json)
    chunks = served.stream("/v1/completions", body).chunks()
    for chunk in chunks:
        # The description has no chunk of its own; OpenAI's chunks are answers whose choices have not ended.
        for choice in chunk["choices"]:
            choice["finish_reason"] = choice["finish_reason"] or "stop"
        if chunk.get("usage", 1) is None:
            del chunk["usage"]
        check(description, "CreateCompletionResponse", chunk)


@pytest.mark.parametrize("fields", [*ASKED, CHAT_LOGPROBS])
def test_chat(served: Served, description: Any, fields: dict[str, Any]) -> None:
    body = {**CHAT, **fields}
    answer = served.post("/v1/chat/completions", without_stream_options(body)).json
    check(description, "CreateChatCompletionResponse", answer)
    for chunk in served.stream("/v1/chat/completions", body).chunks():
        if chunk.get("usage", 1) is None:
            del chunk["usage"]  # null in OpenAI's text, but not in its description
        check(description, "CreateChatCompletionStreamResponse", chunk)


def test_models(served: Served, description: Any) -> None:
    models = served.get("/v1/models").json
    check(description, "ListModelsResponse", models)
    name = models["data"][0]["id"]
    check(description, "Model", served.get("/v1/models/" + name.replace("/", "%2F")).json)


def test_errors(served: Served, description: Any) -> None:
    answers = [
        served.complete(""),
        served.complete(model="other"),
        served.get("/nowhere"),
        served.get("/v1/completions"),
        served.request("POST", "/v1/completions", b"{", {"Content-Type": "text/plain"}),
    ]
    assert [answer.status for answer in answers] == [400, 404, 404, 405, 415]
    for answer in answers:
        check(description, "ErrorResponse", answer.json)
