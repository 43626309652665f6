"""How much longer normalisation may make texts: maps are measured, and refused, before any text meets them."""

from __future__ import annotations

import base64
import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.text.sentencepiece_models import UNIGRAM, charsmap
from tests.text.test_hf_sentencepiece import write_json

from octavo import _native
from octavo.formats.errors import ModelFileError
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.normalizer_limits import check_charsmap
from octavo.text.tokenizer import Tokenizer

PATH = Path("x")


def with_key(key: bytes, replacement: bytes) -> bytes:
    """A map of one key: each byte's node lies where nothing else can, in a block of 256 units of its own."""
    blocks = len(key) + 2
    units = np.zeros(256 * blocks, np.uint32)
    units[0] = 256 << 10  # the offset of block 1; offsets are exclusive-ored
    base = 256
    for index, byte in enumerate(key):
        place, following = base ^ byte, 256 * (index + 2)
        last = index == len(key) - 1
        units[place] = ((place ^ following) << 10) | (last << 8) | byte
        base = following
    units[base] = np.uint32(1 << 31)  # a value: the first replacement
    stored = units.astype("<u4").tobytes()
    return len(stored).to_bytes(4, "little") + stored + replacement + b"\0"


def normalised(stored: bytes, text: str) -> str:
    """Through the kernel's own reading of the map."""
    pieces = [(chr(97 + index), 0.0, 1) for index in range(26)]
    texts, scores, types = zip(*pieces, strict=True)
    native = _native.Unigram(
        [text.encode() for text in texts], np.array(scores, np.float32), np.array(types, np.int32), False, False, stored
    )
    return "".join(texts[index] for index in native.encode(text.encode()))


def test_the_usual_map() -> None:
    assert check_charsmap(PATH, "map", charsmap()) == 11.0


@pytest.mark.parametrize(("key", "most"), [(b"a", 16), (b"ab", 32), (b"abcdefg", 112)])
def test_a_key_of_each_length(key: bytes, most: int) -> None:
    stored = with_key(key, b"x" * most)
    assert normalised(stored, f"z{key.decode()}y") == f"z{'x' * most}y"
    assert check_charsmap(PATH, "map", stored) == 16.0
    with pytest.raises(ModelFileError, match=rf"x: map replaces {len(key)} bytes by {most + 1}; .* may be 16 times"):
        check_charsmap(PATH, "map", with_key(key, b"x" * (most + 1)))


@given(arrays.arrays(np.uint32, st.integers(1, 600)), st.binary(max_size=40))
def test_any_units_are_measured(units: np.ndarray, texts: bytes) -> None:
    stored = units.astype("<u4").tobytes()
    with contextlib.suppress(ModelFileError):
        assert 1.0 <= check_charsmap(PATH, "map", len(stored).to_bytes(4, "little") + stored + texts + b"\0") <= 16.0


def test_a_gguf_file(tmp_path: Path) -> None:
    stored = np.frombuffer(with_key(b"a", b"x" * 200), np.int8)
    write_gguf(tmp_path / "m.gguf", {**UNIGRAM, "tokenizer.ggml.precompiled_charsmap": stored}, [])
    with pytest.raises(
        ModelFileError, match=r"m\.gguf: metadata tokenizer\.ggml\.precompiled_charsmap replaces 1 byte"
    ):
        Tokenizer.load(ModelFiles("gguf", tmp_path / "m.gguf", "m"))
    large = np.zeros((4 << 20) + 1, np.int8)
    write_gguf(tmp_path / "m.gguf", {**UNIGRAM, "tokenizer.ggml.precompiled_charsmap": large}, [])
    with pytest.raises(ModelFileError, match="has 4194305 bytes; the limit is 4194304"):
        Tokenizer.load(ModelFiles("gguf", tmp_path / "m.gguf", "m"))


def _replace(pattern: dict[str, str], content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": pattern, "content": content}


@pytest.mark.parametrize(
    ("normalizer", "times"),
    [
        (_replace({"String": "a"}, "b" * 65), "65"),
        (_replace({"Regex": ""}, "b" * 64), "65"),
        ({"type": "Prepend", "prepend": "b" * 65}, "65"),
        ({"type": "Sequence", "normalizers": [_replace({"String": "a"}, "a" * 9)] * 2}, "81"),
    ],
)
def test_a_folder(tmp_path: Path, normalizer: dict[str, Any], times: str) -> None:
    write_json(tmp_path, dict(UNIGRAM))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "normalizer": normalizer}))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(
        ModelFileError, match=f"has a normalizer that makes texts {times} times as long; the limit is 64"
    ):
        Tokenizer.load(ModelFiles("safetensors", tmp_path, "m"))


def test_a_map_of_a_folder(tmp_path: Path) -> None:
    write_json(tmp_path, dict(UNIGRAM))
    path = tmp_path / "tokenizer.json"
    stored = base64.b64encode(with_key(b"a", b"x" * 200)).decode()
    normalizer = {"type": "Precompiled", "precompiled_charsmap": stored}
    path.write_text(json.dumps({**json.loads(path.read_text()), "normalizer": normalizer}))
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    with pytest.raises(ModelFileError, match="precompiled_charsmap replaces 1 bytes by 200"):
        Tokenizer.load(ModelFiles("safetensors", tmp_path, "m"))
