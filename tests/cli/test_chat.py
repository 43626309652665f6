"""`octavo chat` from a pipe, and in a pseudo-terminal."""

from __future__ import annotations

import io

import pytest
from tests.cli.fake_llm import FakeLLM

from octavo.cli import answer
from octavo.cli import main as cli


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr(answer, "open_llm", lambda arguments: fake)
    return fake


def say(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


HELLO = {"role": "assistant", "content": "Hello."}


def test_history_is_kept(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    say(monkeypatch, "one", "", "two")
    assert cli.main(["chat"]) == 0
    assert llm.asked == [[user("one")], [user("one"), HELLO, user("two")]]
    captured = capsys.readouterr()
    assert captured.out == "Hello.\nHello.\n"
    assert captured.err.count("answer 3 tokens") == 2


def test_reset_keeps_the_system_message(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "one", "/reset", "two")
    assert cli.main(["chat", "--system", "Be brief."]) == 0
    system = {"role": "system", "content": "Be brief."}
    assert llm.asked == [[system, user("one")], [system, user("two")]]


def test_exit_ends(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    say(monkeypatch, "one", "/exit", "two")
    assert cli.main(["chat"]) == 0
    assert len(llm.asked) == 1
    assert llm.closed


def test_unknown_commands_are_not_sent(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    say(monkeypatch, "/quit now")
    assert cli.main(["chat"]) == 0
    assert llm.asked == []
    assert "There is no /quit: /reset forgets" in capsys.readouterr().err


def test_ctrl_c_stops_the_answer_not_the_program(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llm.interrupt_after = 1
    say(monkeypatch, "one", "two")
    assert cli.main(["chat"]) == 0
    assert llm.asked[1] == [user("one"), {"role": "assistant", "content": "Hello"}, user("two")]
    assert llm.open_streams == 0


def test_a_question_that_fails_leaves_the_conversation_as_it_was(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.error = ValueError("the prompt has 9000 tokens; the context is 8192.")
    say(monkeypatch, "one", "two")
    assert cli.main(["chat"]) == 0
    assert llm.asked == [[user("one")], [user("two")]]
    assert "/reset" in capsys.readouterr().err
