"""How GGUF files name the way a text is cut before byte-pair merges: `tokenizer.ggml.pre`.

Each name stands for regular expressions that are applied one after another, each to the pieces that the one before has
left; what an expression does not match stays a piece of its own. The rules are llama.cpp's (src/llama-vocab.cpp and
src/unicode.cpp), where the name decides, also where they are coarser than those of the model's authors: all letters
beyond ASCII count as upper and lower case alike, and white space beyond ASCII belongs to no list of characters. Each
rule is compared with llama.cpp's own in tests/text/test_pretokenizer_goldens.py.

Left out are the names whose tokens are no bytes in GPT-2's alphabet (gemma4, granite-embed-multi-311m, sarvam-moe,
whitespace). All rules take time in proportion to the text.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """cuts: the expressions. whole_words: a piece that is itself a token is not merged from bytes.

    add_bos: whether a model with this name expects bos when its file does not say.
    """

    cuts: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"

_CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_SIGNS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_LLAMA3 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}{_SIGNS}{_SPACES}"
_QWEN2 = rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{_SIGNS}{_SPACES}"

_SIGNS_OR_PATH = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"


def _cased(letters: str, ending: str) -> str:
    """Words of capitals followed by small letters; `ending` may belong to them."""
    upper, lower = rf"(?:(?={letters})[^a-z])", rf"(?:(?={letters})[^A-Z])"
    return rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{ending}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{ending}"


_GPT4O = _cased(r"\p{L}", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _SIGNS_OR_PATH + _SPACES
_TEKKEN = _cased(r"\p{L}", "") + r"|\p{N}" + _SIGNS_OR_PATH + _SPACES
_MARKED_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+{_CONTRACTIONS}?"

_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_ASCII_SIGN = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_DEEPSEEK3 = rf"{_ASCII_SIGN}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+"

# The letters with case, as DeepSeek LLM's authors list them.
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK_CJK = r"[[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]&&[^\s]]+"
_DEEPSEEK_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+"

_HAN = (
    r"\u4e00-\u9fff\u3400-\u4dbf\x{20000}-\x{2a6df}\x{2a700}-\x{2b73f}\x{2b740}-\x{2b81f}\x{2b820}-\x{2ceaf}"
    r"\x{2ceb0}-\x{2ebef}\uf900-\ufaff\x{2f800}-\x{2fa1f}"
)
_NOT_HAN = rf"[\p{{L}}&&[^{_HAN}]]+"
_KIMI = rf"[{_HAN}]+|[^\r\n\p{{L}}\p{{N}}]?{_NOT_HAN}{_CONTRACTIONS}?|\p{{N}}{{1,3}}{_SIGNS}{_SPACES}"

_POETIC = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_YOUTU_SCRIPTS = (
    "[\uac00-\ud7a3\u3131-\u318e]+"
    "|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+"
    f"|[\u3105-\u312f]+|{_CJK}"
)
_AFMOE_SCRIPTS = (
    "[\u4e00-\u9fff\u3400-\u4dbf\u8c48-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+"
)
# Groups of three digits counted from the end, 1,234,567, the first together with what is before it. In two steps, so
# that the end of a number is looked for once.
_DIGIT_GROUPS = (r"\P{N}*+\p{N}+|\P{N}++", r"\A\P{N}*+\p{N}{1,3}?(?=(?:\p{N}{3})*\z)|\p{N}{3}")


def _superbpe() -> str:
    """Cuts each run of ASCII digits before its groups of three, counted from its end; what is not cut off stays.

    llama.cpp looks for (?=(\\d{3})+(?!\\d)) everywhere, which takes the square of a run's length. Here the end of a run
    is looked for at its beginning only: a match reaches from one cut to the next.
    """
    groups = r"(?=(?:[0-9]{3})++(?![0-9]))"
    before_groups = rf"(?:[0-9]{{1,2}}{groups})?"
    to_groups = r"(?:[^0-9]++(?:[0-9]{1,2}(?![0-9]))?+)*+" + before_groups
    return (
        rf"\A[0-9]{{1,2}}(?![0-9]){to_groups}|\A(?=[^0-9]){to_groups}|\A[0-9]{{1,2}}{groups}"
        rf"|[0-9]{{3}}(?:(?=[0-9])|{to_groups})"
    )


_JAIS2_SPACES = "".join(rf"|\s{{{count}}}(?!\S)" for count in (512, 256, 128, 64, 32, 16, 8, 4)) + r"|\s{1,2}(?!\S)|\s"

_RULES: tuple[tuple[str, PreTokenizer], ...] = (
    ("default", PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))),
    (
        "gpt-2 phi-2 mpt olmo jais trillion granite-docling exaone4 gigachat a.x-4.0 mellum modern-bert roberta-bpe"
        " jina-es jina-de jina-v1-en jina-v2-es jina-v2-de jina-v2-code",
        PreTokenizer((_GPT2,)),
    ),
    (
        "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
        PreTokenizer((r"\p{N}", _GPT2)),
    ),
    (
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
        PreTokenizer((_LLAMA3,), whole_words=True, add_bos=True),
    ),
    ("glm4 glm5", PreTokenizer((_LLAMA3,), whole_words=True)),
    ("dbrx smaug-bpe chatglm-bpe", PreTokenizer((_LLAMA3,))),
    (
        "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan solar-open kormo f2llmv2 grok-2",
        PreTokenizer((_QWEN2,)),
    ),
    (
        "qwen35",
        PreTokenizer(
            (
                rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
                rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_SPACES}",
            )
        ),
    ),
    ("ufakzeka", PreTokenizer((rf"{_WORDS}|\p{{N}}{_SIGNS}{_SPACES}",))),
    (
        "seed-coder",
        PreTokenizer((rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_SPACES}",)),
    ),
    (
        "bailingmoe bailingmoe2 llada-moe",
        PreTokenizer(
            (
                rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORDS}|\p{{N}}{_SIGNS}"
                r"|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    (
        "exaone-moe",
        PreTokenizer(
            (
                rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
                r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
            )
        ),
    ),
    ("jais-2", PreTokenizer((rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}{{1,3}}{_SIGNS}|\s*[\r\n]+{_JAIS2_SPACES}",))),
    (
        "minicpm5",
        PreTokenizer(
            (r"\p{N}{1,3}", rf"{_CONTRACTIONS}|{_WORDS}|\p{{N}}+{_SIGNS}{_SPACES}"),
            whole_words=True,
        ),
    ),
    ("laguna", PreTokenizer((r"[^\n]+|\n+", _QWEN2))),
    ("gpt-4o llama4 kanana2 talkie minimax-m2", PreTokenizer((_GPT4O,))),
    (
        "granite-embed-multi-97m",
        PreTokenizer(
            (_cased(r"[\p{L}\p{M}]", _CONTRACTIONS + "?") + r"|\p{N}{1,3}" + _SIGNS_OR_PATH + _SPACES,),
            whole_words=True,
        ),
    ),
    ("tekken", PreTokenizer((_TEKKEN,), whole_words=True, add_bos=True)),
    (
        "tiny_aya cohere2moe",
        PreTokenizer((*_DIGIT_GROUPS, rf"{_MARKED_WORDS}|\p{{N}}{{1,3}}{_SIGNS_OR_PATH}{_SPACES}")),
    ),
    (
        "deepseek-llm",
        PreTokenizer(
            (r"[\r\n]", rf"\s?[{_CASED_LETTERS}]+", _DEEPSEEK_SIGNS, r"\s+\z", _DEEPSEEK_CJK, r"\p{N}+"),
        ),
    ),
    ("deepseek-coder", PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _DEEPSEEK_CJK, r"\p{N}"))),
    (
        "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
        PreTokenizer((r"\p{N}{1,3}", _CJK, rf"{_DEEPSEEK3}[\r\n]*{_SPACES}")),
    ),
    ("spark2_5", PreTokenizer((r"\p{N}{1,3}", _CJK, rf"{_DEEPSEEK3}|[\r\n]|\s+(?!\S)|\s+", r"\p{N}"))),
    ("kimi-k2", PreTokenizer((_KIMI,))),
    (
        "youtu",
        PreTokenizer((_YOUTU_SCRIPTS, rf"{_MARKED_WORDS}|\p{{N}}{_SIGNS_OR_PATH}{_SPACES}"), whole_words=True),
    ),
    ("afmoe", PreTokenizer((*_DIGIT_GROUPS, _AFMOE_SCRIPTS, rf"{_DEEPSEEK3}[\r\n]*{_SPACES}"))),
    ("falcon", PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"))),
    (
        "chameleon",
        PreTokenizer(
            (
                r"<sentinel:[0-9]+>",
                r"IMGIMG[A-I]{1,4}Z",
                r"[\t\n]|    |  ",
                r"\p{N}",
                r"[\p{P}!-/:-@\[-`{-~]",
                _GPT2,
            ),
            add_bos=True,
        ),
    ),
    ("superbpe", PreTokenizer((r"\p{N}+", _superbpe()))),
    ("bloom gpt3-finnish poro-chat", PreTokenizer((_POETIC,))),
    ("viking", PreTokenizer((_POETIC, r"\p{N}"))),
)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {name: rule for names, rule in _RULES for name in names.split()}

#: One name of each rule: what is tested for it holds for the others.
DISTINCT = tuple(names.split()[0] for names, _ in _RULES)
