"""Gemma 3 270M behind the server: a vocabulary of pieces, no chat template of its own, text that makes sense."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.harness import Octavo
from tests.text.chat_templates import FAMILIES

# The model has to be fetched: 241 MiB.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BOS, START, END = 2, 105, 106
GREEDY = {"temperature": 0, "max_tokens": 24}


@pytest.fixture(scope="module")
def octavo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Octavo]:
    """With a template that an operator passes."""
    template = tmp_path_factory.mktemp("gemma") / "gemma.jinja"
    template.write_text(FAMILIES["gemma"].template.strip())
    with Octavo("gemma-3-270m", "--chat-template", str(template), "--max-model-len", "2048") as one:
        yield one
        assert one.stop() == 0, one.log
        assert one.log.rstrip().endswith("stopped"), one.log  # nothing about what is left behind


def test_it_knows_things(octavo: Octavo) -> None:
    assert "city" in octavo.text("The capital of France is", **GREEDY)
    assert "8, 9, 10" in octavo.text("1, 2, 3, 4, 5, 6, 7,", **GREEDY)


def test_bos_comes_once(octavo: Octavo) -> None:
    def ids(prompt: str) -> list[int]:
        found: list[int] = octavo.post("/tokenize", {"prompt": prompt}).json["tokens"]
        return found

    assert ids("The pool")[0] == BOS
    assert ids("The pool") == ids("<bos>The pool")
    assert octavo.text("<bos>The capital of France is", **GREEDY) == octavo.text("The capital of France is", **GREEDY)
    chat = octavo.post("/tokenize", {"messages": [{"role": "user", "content": "hi<end_of_turn>"}]}).json["tokens"]
    assert [token for token in chat if token in (BOS, START, END)] == [BOS, START, END, START]


def test_a_stream_is_the_answer_in_pieces(octavo: Octavo) -> None:
    for prompt in ("Once upon a time", "日本の首都は", "Emoji: 🙂 🤖 𒀀 👩‍👩‍👧 🙂 🤖 𒀀 👩‍👩‍👧 🙂 🤖 𒀀"):
        body = {"prompt": prompt, **GREEDY}
        pieces = [chunk["choices"][0]["text"] for chunk in octavo.stream("/v1/completions", body).chunks()]
        assert "".join(pieces) == octavo.text(prompt, **GREEDY)
        assert len(pieces) > 5
        assert "\ufffd" not in "".join(pieces[:-1])  # only the limit on tokens may cut a character


def test_a_turn_ends(octavo: Octavo) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, "temperature": 0}
    forced = {**body, "logit_bias": {str(END): 100}}
    answer = octavo.post("/v1/chat/completions", forced).json["choices"][0]
    assert (answer["finish_reason"], answer["message"]["content"]) == ("stop", "")
    assert octavo.post("/v1/chat/completions", body).status == 200


def test_without_a_template_chat_says_what_to_do(tmp_path: Path) -> None:
    with Octavo("gemma-3-270m", "--max-model-len", "512") as bare:
        error = bare.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}).error
        assert error["code"] == "no_chat_template"
        assert "the model gemma-3-270m has no chat template; pass one with --chat-template FILE" in error["message"]
        assert bare.text("1, 2, 3,", **GREEDY).startswith(" 4")
