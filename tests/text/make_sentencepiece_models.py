"""Make goldens/sentencepiece.json: two small vocabularies, trained by SentencePiece itself on the project's own pages.

    pip install sentencepiece && python -m tests.text.make_sentencepiece_models

One of byte-pair merges and one unigram, both with byte fallback, words of the user and control tokens.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import sentencepiece

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def train(kind: str) -> list[list[object]]:
    """[text, score, type as in GGUF] of each piece."""
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
        control_symbols=["<start_of_turn>", "<end_of_turn>"],
        user_defined_symbols=["\n", "\n\n", "\n\n\n", "<h1>", "  "],
        minloglevel=2,
    )
    trained = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [[trained.id_to_piece(i), round(trained.get_score(i), 4), _type(trained, i)] for i in range(len(trained))]


def _type(trained: sentencepiece.SentencePieceProcessor, index: int) -> int:
    if trained.is_unknown(index):
        return 2
    if trained.is_control(index):
        return 3
    if trained.is_byte(index):
        return 6
    return 4 if trained.id_to_piece(index) in ("\n", "\n\n", "\n\n\n", "<h1>", "  ", "▁▁") else 1


def main() -> None:
    lines = [f"{json.dumps(kind)}: {json.dumps(train(kind), ensure_ascii=False)}" for kind in ("bpe", "unigram")]
    (HERE / "goldens" / "sentencepiece.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
