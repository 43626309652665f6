"""Texts on which tokenizers are compared: the awkward ones by hand, and seeded random ones."""

from __future__ import annotations

import random

FIXED = [
    "Hello world",
    "  two  spaces",
    "   ",
    " ",
    "\n\n\n",
    "\r\n\r\n",
    " \n \n",
    "trailing   ",
    "don't I'LL we've you'Re x'd 'S",
    "12345 1,000 3.14159 0x1F",
    "1234567890" * 3,
    "naïve café, cafe\u0301",
    "日本語のテキスト、한국어 텍스트",
    "नमस्ते दुनिया",
    "👨‍👩‍👧 🏳️‍🌈 🇩🇪",
    "tabs\tand\t\ttabs",
    "a\u00a0b\u2003c\u3000d\u0085e",
    "<|im_start|>user\nhi<|im_end|>",
    "<|endoftext|><|im_end|><repo_name>",
    "<|im_start",
    "def f(x):\n    return x**2  # comment\n\n\n",
    '{"a": [1, 2, {"b": null}]}',
    "https://example.com/path?q=1&r=%20",
    "ÀÉÎÕÜ àéîõü ß Straße ŒŒ",
    "Ⅷ ½ ² ₃ ① ٣ ३",
    "\x00\x01\x04\x06\x13 control \x7f",
    "e" * 300,
    "ab" * 200,
    "!?!?...—–“”‘’«»",
    "مرحبا بالعالم שלום",
    "\ufeffBOM \u200b zero \u200d width",
    "\U000e0041\U0010fffd\uf8ff private",
    "ﬁ ligature ﷺ",
    "_underscore_ __init__ CamelCase snake_case",
    "$100 €5 100% #tag @user ~tilde ^caret `tick` |pipe|",
]

_SNIPPETS = [
    *" \n\t\r.,;:!?'\"-_<>|/\\()[]{}@#$%^&*+=~`",
    *"0123456789",
    *"aeionrstEITS",
    *(
        "  ",
        "   ",
        "\n\n",
        "\r\n",
        " the",
        "ing",
        "'s",
        "'LL",
        "don't",
        " 42",
        "Hello",
        "<|im_end|>",
        "é",
        "日本",
        "語",
        "Ж",
    ),
    *("👍", "\u0301", "\u00a0", "\u3000", "\u2028", "½", "٣", "ß", "नम", "한국", "שלום"),
    # What some rules treat in a way of their own: scripts, capitals, long runs, image tokens, digits in groups.
    *("ไทย", "မြန်", "ㄅㄆ", "ㄱ", "カ", "ÉÀ", "ǅ", "ʰ", "HTTPServer", "e\u0301", "、。", "…", "！", "”", "//", "/\n"),
    *("\t\t", "        ", " " * 33, "\n\n\n", "1234", "12345678", "٣٤", "<sentinel:7>", "IMGIMGABCZ", " a b c"),
    # Texts of tokens that stand for themselves or for something else.
    *("<end_of_turn>", "<start_of_turn>", "<bos>", "<unused3>", "<0x41>", "▁", "▁the", "<h1>", "</strong>"),
]


def random_texts(count: int, seed: int) -> list[str]:
    """Texts of 1 to 40 parts: snippets that tokenizers treat specially, and any code points at all."""
    draw = random.Random(seed).random
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(1 + int(draw() * 40)):
            if draw() < 0.75:
                parts.append(_SNIPPETS[int(draw() * len(_SNIPPETS))])
            else:
                parts.append(_any_char(draw()))
        texts.append("".join(parts))
    return texts


def _any_char(share: float) -> str:
    """A code point: a third below U+0800, a third in the rest of the BMP, a third anywhere assigned long ago."""
    third, place = divmod(share * 3, 1)
    if third == 0:
        return chr(int(place * 0x800))
    if third == 1:
        # Below the surrogates.
        return chr(0x800 + int(place * (0xD800 - 0x800)))
    return chr(0x1F300 + int(place * 0x300))
