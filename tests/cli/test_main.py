"""The `octavo` command from outside: quick help, one-sentence errors, exit statuses."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from octavo import __version__
from octavo.cli import main as cli
from octavo.cli.reference import markdown

ROOT = Path(__file__).parents[2]


def octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "octavo.cli.main", *arguments], capture_output=True, text=True)


def test_help_is_quick_and_lists_the_verbs() -> None:
    took_s = []
    for _ in range(5):
        before = processor_seconds_of_children()
        result = octavo("--help")
        took_s.append(processor_seconds_of_children() - before)
        assert result.returncode == 0
    assert min(took_s) < 0.3
    assert all(verb in result.stdout for verb in cli.VERBS)


def processor_seconds_of_children() -> float:
    """What ended children have used: unlike wall time it does not grow when tests run on a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_imports_nothing_heavy() -> None:
    heavy = ("numpy", "tokenizers", "jinja2", "uvicorn", "yaml", "octavo._native")
    code = (
        "import sys; from octavo.cli.main import main; main(['--help']); main(['serve', '--port', 'x']);"
        f"print([m for m in {heavy} if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_version() -> None:
    assert octavo("--version").stdout == f"octavo {__version__}\n"


@pytest.mark.parametrize("verb", cli.VERBS)
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([verb, "--help"])
    assert caught.value.code == 0
    assert cli.VERBS[verb] in capsys.readouterr().out


def test_no_verb_shows_usage_and_fails() -> None:
    result = octavo()
    assert result.returncode == 2
    assert "usage" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["swerve"], "there is no `octavo swerve`"),
        (["serve", "--port", "x"], "--port is 'x'"),
        (["serve", "--nope"], "--nope"),
    ],
)
def test_wrong_usage_is_one_sentence_and_status_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(arguments) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


class Verb:
    """Stands in for a verb's module; raises what it is given."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def add_arguments(self, parser: object) -> None:
        parser.add_argument("--log-level")  # type: ignore[attr-defined]

    def run(self, arguments: object) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [
        (OSError(98, "Address already in use"), 1, "Address already in use"),
        (
            OSError(28, "No space left on device"),
            1,
            "octavo: No space left on device, so not all of the output could be",
        ),
        (FileNotFoundError(2, "No such file or directory", "x.json"), 1, "octavo: x.json: No such file or directory."),
        (ValueError("the file is\ncut off."), 1, "octavo: the file is cut off."),
        (KeyError("oops"), 1, "internal error: KeyError: 'oops'"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_failing_verb_ends_in_one_sentence(
    error: BaseException,
    status: int,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: Verb(error))
    assert cli.main(["serve"]) == status
    captured = capsys.readouterr().err
    assert says in captured
    assert "Traceback" not in captured
    if status == 1:
        cli.main(["serve", "--log-level", "debug"])
        assert "Traceback" in capsys.readouterr().err


def test_the_configuration_page_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == markdown(), "run `python -m octavo.cli.reference > docs/configuration.md`"
