"""Make goldens/sentencepiece.json: two small vocabularies, trained by SentencePiece itself on the project's own pages.

    pip install sentencepiece && python -m tests.text.make_sentencepiece_models

One of byte-pair merges and one unigram, both with byte fallback, words of the user and control tokens. Goldens of the
unigram model are made here too, goldens/unigram.json: llama.cpp has no byte fallback for it. (Goldens of the other one
have to be made anew afterwards: make_tokenizer_goldens.py.)
"""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import sentencepiece
from tests.text import tokenizer_goldens

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


CONTROL = ["<start_of_turn>", "<end_of_turn>"]
WORDS = ["\n", "\n\n", "\n\n\n", "<h1>"]
RANDOM_COUNT = 400


def train(kind: str, words: list[str]) -> sentencepiece.SentencePieceProcessor:
    pages = sorted((ROOT / "docs").glob("*.md"))
    lines = [line for page in pages for line in page.read_text().splitlines() if line]
    lines += ["日本語のテキスト、한국어 텍스트", "नमस्ते दुनिया", "ÀÉÎÕÜ àéîõü ß Straße", "        indented"] * 20
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        model_type=kind,
        vocab_size=1200,
        byte_fallback=True,
        character_coverage=1.0,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        control_symbols=CONTROL,
        user_defined_symbols=words,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def pieces(trained: sentencepiece.SentencePieceProcessor, words: list[str]) -> list[tuple[str, float, int]]:
    """Text, score and GGUF's type of each piece."""
    return [(trained.id_to_piece(i), trained.get_score(i), _type(trained, i, words)) for i in range(len(trained))]


def encode(trained: sentencepiece.SentencePieceProcessor, text: str, control: bool) -> list[int]:
    """As others do with a text: it is cut at control tokens where they count, and at the user's words."""
    ids: list[int] = []
    specials = WORDS + (["<unk>", "<s>", "</s>", *CONTROL] if control else [])
    longest_first = sorted(specials, key=len, reverse=True)
    for part in re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text):
        ids += [trained.piece_to_id(part)] if part in specials else trained.encode(part)
    return ids


def _type(trained: sentencepiece.SentencePieceProcessor, index: int, words: list[str]) -> int:
    if trained.is_unknown(index):
        return 2
    if trained.is_control(index):
        return 3
    if trained.is_byte(index):
        return 6
    return 4 if trained.id_to_piece(index) in words else 1


def main() -> None:
    # Two spaces are two U+2581 to SentencePiece itself, which llama.cpp looks for in the text as it is.
    bpe_words = [*WORDS, "  "]
    unigram = train("unigram", WORDS)
    models = {"bpe": pieces(train("bpe", bpe_words), bpe_words), "unigram": pieces(unigram, WORDS)}
    lines = [f"{json.dumps(kind)}: {json.dumps(found, ensure_ascii=False)}" for kind, found in models.items()]
    (HERE / "goldens" / "sentencepiece.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    golden = tokenizer_goldens.make(lambda text, control: encode(unigram, text, control), RANDOM_COUNT)
    tokenizer_goldens.write("unigram", {"unigram": golden})


if __name__ == "__main__":
    main()
