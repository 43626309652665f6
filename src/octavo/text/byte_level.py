"""GPT-2's byte alphabet: each byte of a token is written as one printable character.

Bytes that Latin-1 prints stand for themselves, the other 68 for U+0100 onwards (openai/gpt-2, encoder.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

_PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_OTHERS = sorted(set(range(256)).difference(_PRINTABLE))
_BYTE_OF = {**{byte: byte for byte in _PRINTABLE}, **{0x100 + i: byte for i, byte in enumerate(_OTHERS)}}

#: ALPHABET[byte] is the character that stands for it.
ALPHABET = [chr(char) for char, _ in sorted(_BYTE_OF.items(), key=lambda item: item[1])]

_NOT_A_BYTE = 0x100
_TABLE = np.full(0x100 + len(_OTHERS) + 1, _NOT_A_BYTE, np.uint16)
_TABLE[list(_BYTE_OF)] = list(_BYTE_OF.values())


def bytes_of_tokens(texts: Sequence[str]) -> list[bytes]:
    """The bytes of each token. A token with a character outside the alphabet stands for its own UTF-8."""
    chars = np.frombuffer("".join(texts).encode("utf-32-le", "surrogatepass"), np.uint32)
    values = _TABLE[np.minimum(chars, len(_TABLE) - 1)]
    if values.max(initial=0) == _NOT_A_BYTE:
        return [_bytes_of_token(text) for text in texts]
    raw = values.astype(np.uint8).tobytes()
    return [raw[start:end] for start, end in pairwise(accumulate(map(len, texts), initial=0))]


def _bytes_of_token(text: str) -> bytes:
    try:
        return bytes(_BYTE_OF[ord(char)] for char in text)
    except KeyError:
        return text.encode(errors="surrogatepass")
