"""What GGUF metadata says about tokens, whatever encodes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from octavo.formats.errors import ModelFileError
from octavo.formats.gguf import GgufFile
from octavo.text.vocabulary import Vocabulary

# tokenizer.ggml.token_type
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

#: Tokens of fill-in-the-middle prompts and file lists. Some files call them words of the user.
_FILL_IN = (
    *("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    *("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>", "<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    *("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>", "<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),
)
_CONTROL_TEXTS = frozenset([*_FILL_IN, *map(str.encode, _FILL_IN)])


@dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where a file does not say; each kind of tokenizer has its own."""

    bos_id: int = -1
    eos_id: int = -1
    add_bos: bool = False
    add_eos: bool = False


def token_types(
    file: GgufFile, tokens: Sequence[str] | Sequence[bytes], end_ids: Collection[int]
) -> npt.NDArray[np.int32]:
    """The type of each token; all normal where the file says none. What surely is a control token is one.

    A token that ends turns is control whatever the file calls it: users must not be able to write it.
    """
    metadata, count = file.metadata, len(tokens)
    if "tokenizer.ggml.token_type" not in metadata:
        return np.full(count, NORMAL, np.int32)
    types = metadata.numbers("tokenizer.ggml.token_type").astype(np.int32)
    if len(types) != count:
        raise ModelFileError(file.path, f"has {count} tokens but {len(types)} token types")
    surely = [index for index, token in enumerate(tokens) if token in _CONTROL_TEXTS]
    for index in (*surely, *end_ids):
        if 0 <= index < count and types[index] not in (UNKNOWN, CONTROL):
            types[index] = CONTROL
    return types


def make_vocabulary(
    file: GgufFile,
    token_bytes: list[bytes],
    types: npt.NDArray[np.int32],
    end_ids: Collection[int],
    defaults: Defaults,
) -> Vocabulary:
    """The vocabulary of a file. token_bytes: of each token; those of control tokens are their texts."""
    metadata, count = file.metadata, len(token_bytes)
    control: dict[str, int] = {}
    for index in np.flatnonzero((types == CONTROL) | (types == UNKNOWN)).tolist():
        text = token_bytes[index].decode(errors="replace")
        if text:
            control[text] = index
    return Vocabulary(
        token_bytes=token_bytes,
        control=control,
        bos_id=_special_id(file, "bos_token_id", count, defaults.bos_id),
        eos_id=_special_id(file, "eos_token_id", count, defaults.eos_id),
        end_ids=frozenset(end_ids),
        add_bos=metadata.boolean("tokenizer.ggml.add_bos_token", defaults.add_bos),
        add_eos=metadata.boolean("tokenizer.ggml.add_eos_token", defaults.add_eos),
        swallows=_swallows(file, control),
    ).checked(file.path)


def _special_id(file: GgufFile, key: str, count: int, default: int) -> int | None:
    token = file.metadata.integer(f"tokenizer.ggml.{key}", default)
    if token >= count:
        raise ModelFileError(file.path, f"has {key} {token}, but only {count} tokens")
    return None if token < 0 else token


def _swallows(file: GgufFile, control: Mapping[str, int]) -> dict[int, tuple[bool, bool]]:
    """Phi-3's control tokens take the white space after them with them, which GGUF has no field for."""
    name = file.metadata.string("general.name", " ").lower()
    if "phi-3" not in name and "phi3" not in name:
        return {}
    kept = ("<unk>", "<s>", "<|endoftext|>")
    return {index: (False, True) for text, index in control.items() if text not in kept}
