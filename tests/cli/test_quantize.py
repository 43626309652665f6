"""`octavo quantize`: from GGUF and safetensors to a file that answers alike, and one sentence for what can't be."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.oracle.tiny import MODELS, VOCAB, write_folder
from tests.text.test_gguf_export import KINDS, folder_with
from tokenizers import normalizers
from tokenizers.models import BPE

from octavo.cli.main import main
from octavo.formats.gguf import GgufFile
from octavo.formats.model_files import ModelFiles
from octavo.text.tokenizer import Tokenizer

TEXT = "The quick brown fox jumps over the lazy dog; 1234 times. " * 40
# A small vocabulary whose weights are large enough that rounding shows, and widths of whole blocks of 256.
MODEL = replace(MODELS["tied"], config={**MODELS["tied"].config, "hidden_size": 256, "intermediate_size": 96})


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder of safetensors with a tokenizer."""
    folder = tmp_path / "tiny"
    folder_with(folder, KINDS["qwen2"], trained=257)
    return write_folder(MODEL, folder)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def scores(shown: str) -> tuple[int, float, float]:
    """Tokens, perplexity before and after (huge ones: the weights are random and large)."""
    found = re.search(r"perplexity on (\d+) tokens: ([\d.]+) before, ([\d.]+) after", shown)
    assert found is not None
    return int(found[1]), float(found[2]), float(found[3])


def test_from_safetensors(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "small.gguf"
    assert main(["quantize", str(model), str(target), "--text", str(text), "--tokens", "300"]) == 0
    shown = capsys.readouterr()
    tokens, before, after = scores(shown.out)
    assert tokens == 300
    assert math.log(after) == pytest.approx(math.log(before), rel=0.05)
    assert after != before
    assert "Q4_K" in shown.out
    assert "299 of 300 tokens, perplexity" in shown.err
    file = GgufFile.open(target)
    assert file.metadata.string("general.name") == "tiny"
    assert file.metadata.string("tokenizer.ggml.pre") == "qwen2"
    types = [file.infos[f"blk.{layer}.ffn_down.weight"].type.name for layer in range(2)]
    assert types == ["Q5_0", "Q8_0"]  # 96 wide; the last layer gets more bits
    assert file.infos["blk.0.attn_q.weight"].type.name == "Q4_K"
    ours, theirs = (
        Tokenizer.load(ModelFiles(kind, path, "")) for kind, path in (("gguf", target), ("safetensors", model))
    )
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert ours.vocabulary.size == VOCAB


def test_from_safetensors_with_sentencepieces_tokenizer(
    model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "t", "h", "th"]
    ids = {word: index for index, word in enumerate(words)}
    assert len(ids) == VOCAB
    library = tokenizers.Tokenizer(BPE(ids, [("t", "h")], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    library.add_special_tokens(words[:3])
    library.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    target = tmp_path / "small.gguf"
    assert main(["quantize", str(model), str(target), "--mix", "Q8_0", "--text", str(text), "--tokens", "300"]) == 0
    _, before, after = scores(capsys.readouterr().out)
    assert math.log(after) == pytest.approx(math.log(before), rel=0.05)
    assert GgufFile.open(target).metadata.string("tokenizer.ggml.model") == "llama"
    ours, theirs = (
        Tokenizer.load(ModelFiles(kind, path, "")) for kind, path in (("gguf", target), ("safetensors", model))
    )
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert len(ours.encode("the th")) == 5  # a space, th, e, a space, th


def test_from_gguf(model: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """8 bits of 8: the same model, within what rounding twice makes of it."""
    eight, four = tmp_path / "eight.gguf", tmp_path / "four.gguf"
    assert main(["quantize", str(model), str(eight), "--mix", "Q8_0"]) == 0
    assert "perplexity: not measured" in capsys.readouterr().out
    assert main(["quantize", str(eight), str(four), "--mix", "Q4_0"]) == 1
    assert "is quantised already (Q8_0)" in capsys.readouterr().err
    arguments = ["quantize", str(eight), str(four), "--mix", "Q4_0", "--again", "--text", str(text), "--tokens", "200"]
    assert main(arguments) == 0
    tokens, before, after = scores(capsys.readouterr().out)
    assert tokens == 200
    assert math.log(after) == pytest.approx(math.log(before), rel=0.05)
    assert main(arguments) == 1
    assert f"{four} exists" in capsys.readouterr().err
    assert main([*arguments, "--force"]) == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{model}", "{tmp}/no/x.gguf"], r"there is no folder .*no to write x\.gguf into"),
        (["{model}", "{tmp}"], "is a folder; name the file to write"),
        (["{model}", "{tmp}/x.bin"], r"does not end with \.gguf.* name it x\.bin\.gguf"),
        (["{model}", "{tmp}/x.gguf", "--tokens", "1"], "--tokens is 1; it must be at least 2"),
        (["{model}", "{tmp}/x.gguf", "--text", "{tmp}/no.txt"], r"there is no file .*no\.txt; name a text file"),
        (["{tmp}/nothing.gguf", "{tmp}/x.gguf"], r"There is no file .*nothing\.gguf"),
    ],
)
def test_bad_arguments(
    model: Path, tmp_path: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["quantize", *(part.format(model=model, tmp=tmp_path) for part in arguments)]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "x.gguf").exists()


def _config(changes: dict[str, Any]) -> Any:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            _config({"rope_scaling": {"type": "dynamic", "factor": 2.0}}),
            "a LlamaForCausalLM with these settings can't be",
        ),
        (_config({"architectures": ["MambaForCausalLM"]}), "'MambaForCausalLM' is not supported"),
        (lambda folder: (folder / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    ],
)
def test_models_that_can_not_be_written(
    model: Path, tmp_path: Path, change: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    change(model)
    assert main(["quantize", str(model), str(tmp_path / "x.gguf")]) == 1
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.glob("x.gguf*"))


def test_a_model_is_not_written_over_itself(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = str(tmp_path / "m.gguf")
    assert main(["quantize", str(model), target, "--mix", "Q8_0"]) == 0
    assert main(["quantize", target, target, "--force", "--again"]) == 1
    assert "is the model itself" in capsys.readouterr().err
