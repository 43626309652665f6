"""`octavo chat` from a pipe, and in a pseudo-terminal."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import sys
import time
from pathlib import Path

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


def test_a_model_without_chat_template_is_told_of_at_once(
    llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    llm.why_no_chat = "the model base has no chat template"
    say(monkeypatch, "one")
    assert cli.main(["chat"]) == 1
    assert capsys.readouterr().err == (
        "octavo: the model base has no chat template; `octavo run` continues a text with it.\n"
    )
    assert llm.asked == []


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


TERMINAL_PROGRAM = """
import sys
from octavo.cli import answer, main
from tests.cli.fake_llm import FakeLLM
fake = FakeLLM(pieces=("Hel", "lo", *" there" * 50), pause_s=0.05)
answer.open_llm = lambda arguments: fake
status = main.main(["chat"])
print("asked", len(fake.asked), "status", status)
"""


class Terminal:
    """A Python program in a pseudo-terminal of its own."""

    def __init__(self, code: str) -> None:
        self.process, self.screen = pty.fork()
        if self.process == 0:
            os.chdir(Path(__file__).parents[2])
            os.execve(sys.executable, [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": "."})
        self.shown = ""

    def type(self, keys: str) -> None:
        os.write(self.screen, keys.encode())

    def wait_for(self, pattern: str, keys: str = "") -> None:
        """Until `pattern` shows up behind what was waited for before; `keys` are typed every 5 seconds until then.

        A SIGINT between readline's prompt and its wait for a key is noticed only with the next one.
        """
        begin = time.monotonic()
        typed = 0
        while (found := re.search(pattern, self.shown)) is None:
            elapsed_s = time.monotonic() - begin
            assert elapsed_s < 20, f"no {pattern!r} in {self.shown!r}"
            if keys and 5 * typed <= elapsed_s:
                self.type(keys)
                typed += 1
            if select.select([self.screen], [], [], 0.1)[0]:
                self.shown += os.read(self.screen, 4096).decode()
        self.shown = self.shown[found.end() :]

    def end(self) -> int:
        status = os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])
        os.close(self.screen)  # earlier, it would be a hangup
        return status


def test_in_a_terminal_ctrl_c_stops_an_answer_and_ctrl_d_ends() -> None:
    terminal = Terminal(TERMINAL_PROGRAM)
    terminal.wait_for("Ctrl-C stops an answer")
    terminal.wait_for("> ")
    terminal.wait_for("/exit", keys="\x03")
    terminal.wait_for("> ")
    terminal.type("hi\n")
    terminal.wait_for("Hello")
    terminal.type("\x03")
    terminal.wait_for("; stopped")
    terminal.wait_for("> ")
    terminal.type("\x04")
    terminal.wait_for("asked 1 status 0")
    assert terminal.end() == 0


def test_ctrl_c_twice_at_the_prompt_ends() -> None:
    terminal = Terminal(TERMINAL_PROGRAM)
    terminal.wait_for("Ctrl-C stops an answer")
    terminal.wait_for("> ")
    terminal.wait_for("/exit", keys="\x03")
    terminal.wait_for("> ")
    terminal.wait_for("asked 0 status 0", keys="\x03")
    assert terminal.end() == 0
