"""`octavo pull`: what is shown, and where it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.cli import main as cli
from octavo.formats.catalogue import CATALOGUE
from octavo.formats.progress_bar import Bar, draw


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    return tmp_path


def test_the_list_says_what_is_here(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = CATALOGUE[0]
    path = first.cached_path(cache)
    path.parent.mkdir(parents=True)
    path.touch()
    assert cli.main(["pull", "--list"]) == 0
    lines = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line}
    assert lines[first.name][3] == "yes"
    assert lines["sharegpt"][3] == "no"


def test_an_unknown_name_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull", "no-such-model"]) == 1
    error = capsys.readouterr().err
    assert "no-such-model" in error
    assert error.count("\n") == 1


def test_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["pull"]) == 2
    assert "octavo pull --list" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [
        (0, 200, "x [............................]   0% of 200"),
        (100, 200, "x [##############..............]  50% of 200"),
        (200, 200, "x [############################] 100% of 200"),
        (300, 200, "x [############################] 100% of 200"),
        (0, 0, "x [............................]   0% of 0"),
    ],
)
def test_the_bar(done: int, total: int, shown: str) -> None:
    assert draw("x", done, total) == shown


def test_without_a_terminal_each_thing_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with Bar() as bar:
        for done in range(5):
            bar.show("downloading", done, 4 << 20)
        bar.show("unpacking", 1, 2048)
    assert capsys.readouterr().err == "downloading (4.0MiB)\nunpacking (2.0KiB)\n"
