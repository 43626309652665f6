"""How much longer normalisation may make texts: maps are measured, and refused, before any text meets them."""

from __future__ import annotations

import base64
import json
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.sentencepiece_models import UNIGRAM, charsmap
from tests.text.test_hf_sentencepiece import write_json
from tokenizers import Regex, normalizers, pre_tokenizers

from octavo import _native
from octavo.formats.errors import ModelFileError
from octavo.formats.gguf_write import write_gguf
from octavo.formats.model_files import ModelFiles
from octavo.text.charsmap_limits import check_charsmap
from octavo.text.normalizer_limits import CUTTERS, NORMALIZERS, check_growth
from octavo.text.tokenizer import Tokenizer

PATH = Path("x")


def with_key(key: bytes, replacement: bytes, begin: int = 0, loose: bytes = b"", end: bytes = b"\0") -> bytes:
    """A map of one key: each byte's node lies where nothing else can, in a block of 256 units of its own.

    begin: where in the replacements that of the key begins. loose: bytes of the trie that make up no unit.
    """
    blocks = len(key) + 2
    units = np.zeros(256 * blocks, np.uint32)
    units[0] = 256 << 10  # the offset of block 1; offsets are exclusive-ored
    base = 256
    for index, byte in enumerate(key):
        place, following = base ^ byte, 256 * (index + 2)
        last = index == len(key) - 1
        units[place] = ((place ^ following) << 10) | (last << 8) | byte
        base = following
    units[base] = np.uint32(1 << 31 | begin)  # a value
    stored = units.astype("<u4").tobytes() + loose
    return len(stored).to_bytes(4, "little") + stored + replacement + end


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


_ASCII = st.integers(1, 127).map(lambda byte: bytes([byte]))


@given(
    st.sampled_from(["a", "é", "日", "😀"]),  # the library looks at one character at a time
    st.lists(_ASCII | st.just(b"\0") | st.just(b"x" * 20), min_size=1, max_size=12).map(b"".join),
    st.integers(0, 11),
    st.lists(_ASCII, max_size=3).map(b"".join),
    st.sampled_from([b"", b"\0", b"x", b"\0x"]),
)
def test_no_map_that_is_taken_makes_the_library_write_more(
    char: str, replacements: bytes, begin: int, loose: bytes, end: bytes
) -> None:
    """Also such as are not well formed, most of which the library takes: loose bytes of the trie, no NUL at the end."""
    key, begin = char.encode(), min(begin, len(replacements) - 1)
    stored = with_key(key, replacements, begin, loose, end)
    written = len(normalizers.Precompiled(stored).normalize_str(char).encode())
    well_formed = not loose and (end or replacements)[-1:] == b"\0"
    if well_formed and written <= 16 * len(key):
        assert check_charsmap(PATH, "map", stored) == max(1.0, written / len(key))
    else:
        with pytest.raises(ModelFileError):
            check_charsmap(PATH, "map", stored)


def _growth_by_walking(units: list[int], texts: bytes) -> float:
    """As check_charsmap, by trying every byte at every node in turn."""
    most, nodes, seen = 1.0, {units[0] >> 10}, set[int]()
    for key_bytes in range(1, len(units) + 1):
        places = {node ^ byte for node in nodes for byte in range(256) if node ^ byte < len(units)} - seen
        places = {place for node in nodes for place in places if units[place] & 0x800000FF == place ^ node}
        seen |= places
        nodes = {place ^ units[place] >> 10 for place in places}
        leaves = {place ^ units[place] >> 10 for place in places if units[place] & 0x100}
        for begin in (units[leaf] & 0x7FFFFFFF for leaf in leaves if leaf < len(units)):
            if begin < len(texts):
                most = max(most, (texts.index(b"\0", begin) - begin) / key_bytes)
    return most


_BYTE_UNITS = st.builds(
    lambda to, leaf, byte: to << 10 | leaf << 8 | byte, st.integers(0, 70), st.booleans(), st.integers(0, 70)
)
_VALUE_UNITS = st.integers(0, 130).map(lambda begin: 1 << 31 | begin)


@given(
    st.lists(_BYTE_UNITS | _VALUE_UNITS, min_size=1, max_size=64),
    st.lists(st.sampled_from([b"xyz" * 7, b"x", b"\0"]), max_size=12).map(b"".join),
)
def test_any_units_are_measured(units: list[int], texts: bytes) -> None:
    units[0] &= 0x7FFFFFFF
    stored = np.array(units, "<u4").tobytes()
    stored = len(stored).to_bytes(4, "little") + stored + texts + b"\0"
    most = _growth_by_walking(units, texts + b"\0")
    if most > 16:
        with pytest.raises(ModelFileError, match="a replacement may be 16 times"):
            check_charsmap(PATH, "map", stored)
    else:
        assert check_charsmap(PATH, "map", stored) == most


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        (b"", "has 0 bytes, less than the 4"),
        (bytes(9), "says that its trie has 0 bytes, of 5"),
        (bytes([5, *[0] * 9]), "says that its trie has 5 bytes, of 6; it must have some, and a multiple of 4"),
        (bytes([8, *[0] * 8]), "says that its trie has 8 bytes, of 5"),
        (with_key(b"a", b"x" * 1000, end=b""), "does not end in NUL"),
        (with_key(b"a", b"x\0y", end=b""), "does not end in NUL"),
        (with_key(b"a", b"", end=b""), "does not end in NUL"),
        (with_key(b"a" * 20, b"x" * 257), "has a replacement of 257 bytes; the limit is 256"),
        (with_key(b"a" * 257, b"x"), "has keys of more than 256 bytes"),
        (with_key(b"a" * 4000, b"x"), "has keys of more than 256 bytes"),
    ],
)
def test_what_is_no_map(stored: bytes, message: str) -> None:
    with pytest.raises(ModelFileError, match=f"x: map {message}"):
        check_charsmap(PATH, "map", stored)


def test_the_longest_keys_and_replacements() -> None:
    assert check_charsmap(PATH, "map", with_key(b"a" * 256, b"x" * 256)) == 1.0
    assert check_charsmap(PATH, "map", with_key(b"a" * 64, b"x" * 256)) == 4.0


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
        (_replace({"Regex": ""}, "b" * 64), "129"),
        (_replace({"String": ""}, "b" * 64), "129"),
        ({"type": "Prepend", "prepend": "b" * 65}, "66"),
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


def growth(node: Any) -> float:
    """How many times as long the library makes the text that grows most of some short ones."""
    return max(
        len(node.normalize_str(text).encode()) / len(text.encode()) for text in ("a", "  ", " a", "ab", "é", "ﷺ")
    )


def _described(field: str, node: Any) -> dict[str, Any]:
    return {field: json.loads(node.__getstate__())}


@pytest.mark.parametrize("kind", NORMALIZERS)
def test_what_each_normalizer_makes_of_every_character(kind: str) -> None:
    """The bound is reached, by the library's own tables: of all assigned characters but planes of ideographs."""
    normalise = getattr(normalizers, kind)().normalize_str
    chars = [chr(code) for code in (*range(0xD800), *range(0xE000, 0x20000), *range(0x2F800, 0x2FA20))]
    chars = [char for char in chars if not "\uac01" <= char <= "\ud7a0" and unicodedata.category(char) != "Co"]
    assert max(len(normalise(char).encode()) / len(char.encode()) for char in chars) == NORMALIZERS[kind]


@pytest.mark.parametrize(
    "node",
    [
        normalizers.Sequence([normalizers.ByteLevel()] * 7),
        normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "▁" * 3)]),
        normalizers.Sequence([normalizers.Prepend("a" * 8), normalizers.Replace("a", "a" * 8)]),
        normalizers.Sequence([normalizers.Replace(Regex(""), "b" * 8), normalizers.Replace("b", "b" * 8)]),
        normalizers.Replace(Regex("x*"), "b" * 32),
        normalizers.Replace("", "b" * 32),
        normalizers.Replace(Regex(" {2,}"), "b" * 130),
    ],
)
def test_normalizers_that_grow_too_much(node: Any) -> None:
    grown = growth(node)
    assert grown > 16
    with pytest.raises(ModelFileError, match="has a normalizer that makes texts"):
        check_growth(PATH, _described("normalizer", node))


@pytest.mark.parametrize(
    "node",
    [
        normalizers.Sequence(
            [normalizers.Precompiled(charsmap()), normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        ),
        normalizers.Sequence(
            [
                normalizers.Precompiled(charsmap()),
                normalizers.Strip(left=False, right=True),
                normalizers.Replace(Regex(" {2,}"), "▁"),
            ]
        ),
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
        normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]),
        normalizers.Sequence([]),
        *(getattr(normalizers, kind)() for kind in NORMALIZERS),
    ],
)
def test_usual_normalizers_are_taken(node: Any) -> None:
    check_growth(PATH, _described("normalizer", node))


_CUTTERS_OF_THE_LIBRARY = [
    pre_tokenizers.BertPreTokenizer(),
    pre_tokenizers.CharDelimiterSplit("é"),
    pre_tokenizers.Digits(individual_digits=True),
    pre_tokenizers.FixedLength(2),
    pre_tokenizers.Punctuation(),
    pre_tokenizers.Split(Regex("a"), "isolated"),
    pre_tokenizers.UnicodeScripts(),
    pre_tokenizers.Whitespace(),
    pre_tokenizers.WhitespaceSplit(),
]


def _cut(node: Any, text: str) -> int:
    """Bytes of all pieces."""
    return len("".join(piece for piece, _ in node.pre_tokenize_str(text)).encode())


def test_pre_tokenizers_that_only_cut() -> None:
    kinds = set()
    for node in _CUTTERS_OF_THE_LIBRARY:
        described = _described("pre_tokenizer", node)
        check_growth(PATH, described)
        kinds.add(described["pre_tokenizer"]["type"])
        assert all(_cut(node, text) <= len(text.encode()) for text in ("a é, 12 日本", "\x01", "aa ﷺ"))
    assert kinds == CUTTERS


@pytest.mark.parametrize(
    ("node", "text", "times"),
    [
        (pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=False)] * 4), "é", 16),
        (pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True)] * 2), "\x01", 16),
        (
            pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.ByteLevel(False, use_regex=False)] * 2),
            "a",
            64,
        ),
    ],
)
def test_pre_tokenizers_that_grow_too_much(node: Any, text: str, times: int) -> None:
    assert 8 < _cut(node, text) / len(text.encode()) <= times
    with pytest.raises(ModelFileError, match=r"has a pre_tokenizer that makes texts .* the limit is 8"):
        check_growth(PATH, _described("pre_tokenizer", node))


@pytest.mark.parametrize(
    ("node", "text", "times"),
    [
        (pre_tokenizers.ByteLevel(add_prefix_space=False), "é", 2),
        (pre_tokenizers.ByteLevel(add_prefix_space=True), "\x01", 4),
        (pre_tokenizers.Metaspace(), "a", 4),
        (pre_tokenizers.Metaspace("😀"), "a", 5),
        (pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel(add_prefix_space=False)]), "é", 2),
    ],
)
def test_usual_pre_tokenizers_are_taken(node: Any, text: str, times: int) -> None:
    assert _cut(node, text) == times * len(text.encode())
    check_growth(PATH, _described("pre_tokenizer", node))


def _nested(field: str, parts: str, depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "Sequence", parts: []}
    for _ in range(depth):
        node = {"type": "Sequence", parts: [node]}
    return {field: node}


@pytest.mark.parametrize(
    ("description", "message"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": 5}},
            "normalizer: normalizers of a Sequence must be a list",
        ),
        ({"normalizer": {"type": "Sequence"}}, "normalizer: normalizers of a Sequence must be a list"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": "ab"}},
            "pre_tokenizer: pretokenizers of .* be a list",
        ),
        ({"normalizer": {"type": "Sequence", "normalizers": [None]}}, "normalizer must be an object with a type"),
        # The library reads each of these three as {"type": "Prepend", "prepend": "bb"}.
        ({"normalizer": {"prepend": "bb"}}, "normalizer must be an object with a type"),
        ({"normalizer": {"type": None, "prepend": "bb"}}, "normalizer must be an object with a type"),
        ({"normalizer": ["bb"]}, "normalizer must be an object with a type"),
        ({"normalizer": {"type": "Append", "append": "a"}}, "has a normalizer of type 'Append' that is not known here"),
        ({"normalizer": {"type": "Prepend"}}, "has a normalizer of type 'Prepend' .* lacks what that type needs"),
        ({"pre_tokenizer": {"type": "Doubled"}}, "has a pre_tokenizer of type 'Doubled' that is not known here"),
        (_nested("normalizer", "normalizers", 64), "normalizer has sequences within sequences; the limit is 64"),
        (
            _nested("pre_tokenizer", "pretokenizers", 5000),
            "pre_tokenizer has sequences within sequences; the limit is 64",
        ),
    ],
)
def test_what_can_not_be_measured(description: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=f"^x:? {message}"):
        check_growth(PATH, description)


def test_nesting_up_to_the_limit_is_taken() -> None:
    check_growth(PATH, _nested("normalizer", "normalizers", 63))


def test_a_field_that_a_decoder_does_not_have(tmp_path: Path) -> None:
    """The library passes over it."""
    write_json(tmp_path, dict(UNIGRAM))
    path = tmp_path / "tokenizer.json"
    decoder = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True, "decoders": 5}
    path.write_text(json.dumps({**json.loads(path.read_text()), "decoder": decoder}))
    assert Tokenizer.load(ModelFiles("safetensors", tmp_path, "m")).encode("a")
