"""A folder's tokenizer.json as the metadata of a GGUF file.

Byte-level byte-pair encoding is here, vocabularies of SentencePiece are in gguf_export_pieces.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, pre_tokenizers

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import MetadataValue
from octavo.formats.model_files import ModelFiles
from octavo.formats.safetensors import read_json
from octavo.models.defaults import TURN_ENDS, end_ids_from_folder
from octavo.text.gguf_export_pieces import merges_metadata, unigram_metadata
from octavo.text.gguf_export_tokens import texts_and_types
from octavo.text.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from octavo.text.template_source import find_template
from octavo.text.tokenizer import Tokenizer
from octavo.text.vocabulary import Vocabulary

_MAX_JSON_BYTES = 64 << 20
_RANDOM_TEXTS = 400
_END_KEYS = ("tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id")

#: Texts whose pieces tell the ways to cut apart. Characters on which GGUF's names are coarser than authors' rules
#: (pretokenizers.py) are not among them.
PROBES = (
    "Hello world, don't stop: I'LL we've you'Re x'd 'S",
    "12345 1,000 3.14159 0x1F 1234567",
    "  two  spaces   and trailing   ",
    "\n\n\nlines\r\n\r\n  indented\n \n\tx = y**2  # c\n",
    "日本語のテキスト、한국어 텍스트 中文 汉字",
    "naïve café Straße ÀÉÎ Ωmega привет МИР",
    "नमस्ते दुनिया مرحبا بالعالم",
    "CamelCase snake_case HTTPServer iPhone fooBAR's",
    "https://example.com/path?q=1&r=%20 a/b //",
    '{"a": [1, 2, {"b": null}]} $100 #tag @user ~t ^c |p|',
    "!?!?...—–“”‘’«» 👨‍👩‍👧",
)


def tokenizer_metadata(files: ModelFiles, size: int) -> dict[str, MetadataValue]:
    """Keys `tokenizer.*` for a vocabulary of `size` tokens, as the model has.

    Raises ModelFileError for a tokenizer that can't be written so.
    """
    path = files.path / "tokenizer.json"
    vocabulary = Tokenizer.load(files).vocabulary
    description = read_json(path, _MAX_JSON_BYTES)
    match description.get("model"):
        case {"type": "BPE", "byte_fallback": True}:
            metadata = merges_metadata(path, description, size)
        case {"type": "BPE"}:
            metadata = _byte_level(path, description, size)
        case {"type": "Unigram"}:
            metadata = unigram_metadata(path, description, size)
        case model:
            kind = model.get("type") if isinstance(model, dict) else None
            raise ModelFileError(path, f"is of type {kind!r}; octavo quantize writes BPE and Unigram vocabularies")
    texts = metadata["tokenizer.ggml.tokens"]
    assert isinstance(texts, list)
    metadata["tokenizer.ggml.add_bos_token"] = vocabulary.add_bos
    metadata["tokenizer.ggml.add_eos_token"] = vocabulary.add_eos
    for name, token in (("bos", vocabulary.bos_id), ("eos", vocabulary.eos_id)):
        if token is not None:
            metadata[f"tokenizer.ggml.{name}_token_id"] = token
    metadata.update(_other_ends(files, texts, vocabulary.eos_id))
    template = find_template(files)
    if template is not None:
        metadata["tokenizer.chat_template"] = template.text
    return metadata


def _other_ends(files: ModelFiles, texts: Sequence[str], eos_id: int | None) -> dict[str, MetadataValue]:
    """Ids that end an answer besides eos and those whose texts tell: GGUF has keys for two of them."""
    known = {eos_id, *(index for index, text in enumerate(texts) if text in TURN_ENDS)}
    ends = end_ids_from_folder(files.path, read_json(files.path / "config.json", _MAX_JSON_BYTES))
    others = [index for index in ends if index not in known]
    if len(others) > len(_END_KEYS):
        raise ModelFileError(
            files.path, f"has {len(others)} more tokens that end an answer; GGUF has keys for {len(_END_KEYS)}"
        )
    return dict(zip(_END_KEYS, others, strict=False))


def check_same_tokens(source: ModelFiles, target: Path) -> None:
    """Raise ModelFileError unless the written file's tokenizer gives the ids of the folder's."""
    ours, theirs = Tokenizer.load(ModelFiles("gguf", target, "")), Tokenizer.load(source)
    texts = list(PROBES)
    # Texts made of byte-level tokens hold characters on which GGUF's names are coarser, see PROBES.
    if GgufFile.open(target).metadata.string("tokenizer.ggml.model") != "gpt2":
        texts += _random_texts(theirs)
        _check_same_control(source, ours.vocabulary, theirs.vocabulary)
    for text in texts:
        if ours.encode_prompt(text) != theirs.encode_prompt(text):
            raise ModelFileError(
                source.path / "tokenizer.json", f"can't be written as GGUF: {text!r} would get other tokens there"
            )


def _check_same_control(source: ModelFiles, ours: Vocabulary, theirs: Vocabulary) -> None:
    """Raise ModelFileError where GGUF takes a token for bos or eos that the folder has none for, or can't say that
    control tokens take white space with them."""
    if ours.swallows != theirs.swallows:
        raise ModelFileError(
            source.path / "tokenizer.json",
            "has control tokens that take white space beside them with them; GGUF says so of Phi-3 alone, by its name",
        )
    for name, one, other in (("bos", ours.bos_id, theirs.bos_id), ("eos", ours.eos_id, theirs.eos_id)):
        if one != other:
            raise ModelFileError(
                source.path / "tokenizer_config.json",
                f"names {'no token' if other is None else f'token {other}'} as {name}; GGUF would take token {one}",
            )


def _byte_level(path: Path, description: Mapping[str, Any], size: int) -> dict[str, MetadataValue]:
    model = description["model"]
    texts, types = texts_and_types(description, model["vocab"], size)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": _pre_tokenizer_name(path, bool(model.get("ignore_merges"))),
        "tokenizer.ggml.tokens": texts,
        "tokenizer.ggml.token_type": np.array(types, np.int32),
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]],
    }


def _random_texts(tokenizer: Tokenizer) -> Iterator[str]:
    """Texts of the vocabulary's own tokens, the same ones each time."""
    random = np.random.default_rng(0)
    table = tokenizer.vocabulary.token_bytes
    for _ in range(_RANDOM_TEXTS):
        ids = random.integers(0, len(table), random.integers(1, 24)).tolist()
        yield b"".join(table[index] for index in ids if not tokenizer.is_control(index)).decode(errors="ignore")


def _pre_tokenizer_name(path: Path, whole_words: bool) -> str:
    """The first of GGUF's names that cuts the probes as tokenizer.json does."""
    stored = tokenizers.Tokenizer.from_file(str(path))
    if stored.pre_tokenizer is None:
        raise ModelFileError(path, "has no pre_tokenizer; octavo quantize writes byte-level BPE vocabularies only")
    wanted = [_pieces(stored.pre_tokenizer, text, stored.normalizer) for text in PROBES]
    tried: dict[PreTokenizer, str] = {}
    for name, rule in PRE_TOKENIZERS.items():
        if rule.whole_words == whole_words and rule not in tried:
            tried[rule] = name
            cuts = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in rule.cuts]
            byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            ours = pre_tokenizers.Sequence([*cuts, byte_level])
            if all(_pieces(ours, text) == pieces for text, pieces in zip(PROBES, wanted, strict=True)):
                return name
    raise ModelFileError(path, "cuts texts into words in a way that GGUF has no name for here")


def _pieces(cutter: Any, text: str, normalizer: Any = None) -> list[str]:
    if normalizer is not None:
        text = normalizer.normalize_str(text)
    return [piece for piece, _ in cutter.pre_tokenize_str(text)]
