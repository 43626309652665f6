"""`octavo run` on a model whose answers are chosen."""

from __future__ import annotations

import io
import signal

import pytest
from tests.cli.fake_llm import FakeLLM

from octavo.cli import answer
from octavo.cli import main as cli
from octavo.engine.params import ParamError


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLLM:
    fake = FakeLLM()
    monkeypatch.setattr(answer, "open_llm", lambda arguments: fake)
    return fake


def test_answer_on_stdout_figures_on_stderr(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "Say", "hello", "--temperature", "0", "--max-tokens", "5", "--seed", "3"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Hello.\n"
    assert "prompt 7 tokens" in captured.err
    assert "answer 3 tokens" in captured.err
    assert llm.asked == [[{"role": "user", "content": "Say hello"}]]
    assert (llm.params[0].temperature, llm.params[0].max_tokens, llm.params[0].seed) == (0, 5, 3)
    assert llm.closed


def test_the_models_defaults_hold_without_flags(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "hi", "--no-stats"]) == 0
    assert llm.params == [llm.default_params()]
    assert capsys.readouterr().err == ""


def test_raw_and_system(llm: FakeLLM) -> None:
    assert cli.main(["run", "Once upon", "--raw"]) == 0
    assert cli.main(["run", "hi", "--system", "Be brief."]) == 0
    assert llm.asked == [
        "Once upon",
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    ]


def test_a_model_without_chat_template_continues_the_prompt(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.why_no_chat = "the model base has no chat template"
    assert cli.main(["run", "Once upon", "--no-stats"]) == 0
    assert llm.asked == ["Once upon"]
    told = "octavo: the model base has no chat template; it continues the prompt as it is (--raw).\n"
    assert capsys.readouterr().err == told
    assert cli.main(["run", "Once upon", "--no-stats", "--raw"]) == 0
    assert capsys.readouterr().err == ""
    assert cli.main(["run", "Once upon", "--system", "Be brief."]) == 1
    assert "has no chat template, so --system can't be told to it" in capsys.readouterr().err
    assert len(llm.asked) == 2


@pytest.mark.parametrize("arguments", [["run"], ["run", "-"]])
def test_prompt_from_stdin(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe\n"))
    assert cli.main([*arguments, "--raw"]) == 0
    assert llm.asked == ["from a pipe"]


def test_no_prompt(llm: FakeLLM, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert cli.main(["run"]) == 1
    assert "the prompt is empty" in capsys.readouterr().err
    assert llm.asked == []


def test_ctrl_c_ends_the_answer(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    before = signal.getsignal(signal.SIGINT)
    llm.interrupt_after = 1
    assert cli.main(["run", "hi"]) == 130
    captured = capsys.readouterr()
    assert captured.out == "Hello\n"
    assert "stopped" in captured.err
    assert llm.open_streams == 0
    assert signal.getsignal(signal.SIGINT) is before


def test_a_wrong_parameter_is_one_sentence(llm: FakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.error = ParamError("top_p", "top_p is 7; it must be from 0 to 1.")
    assert cli.main(["run", "hi", "--top-p", "7"]) == 1
    assert capsys.readouterr().err == "octavo: top_p is 7; it must be from 0 to 1.\n"
