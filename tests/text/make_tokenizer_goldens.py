"""Make goldens/*.json: token ids by llama.cpp's own tokenizer (see llama_server.py).

    python -m tests.text.make_tokenizer_goldens LLAMA_SERVER [pretokenizers] [pieces] [gemma]

The committed files: the llama.cpp inside llama-cpp-python 0.3.36. pretokenizers: for each rule a copy of the default
model's vocabulary claims its name, so that the rules are recorded on one vocabulary. pieces: the small vocabularies of
make_sentencepiece_models.py. gemma: Gemma 3 270M.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.text import sentencepiece_models, tokenizer_goldens
from tests.text.llama_server import llama_tokenizer

from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_metadata import Value
from octavo.formats.resolve import resolve
from octavo.text.pretokenizers import DISTINCT

#: Random texts that the model's own rule is compared on, and each other one.
OWN_COUNT, RULE_COUNT = 5000, 400


def tokenizer_metadata(model: str) -> dict[str, Value]:
    metadata = GgufFile.open(resolve(model).path).metadata
    return {key: value for key, value in metadata.items() if key.startswith("tokenizer.ggml.")}


def make_pretokenizers(server: Path) -> None:
    metadata, goldens = tokenizer_metadata("smollm2-135m-instruct"), {}
    own = metadata["tokenizer.ggml.pre"]
    for name in DISTINCT:
        with llama_tokenizer(server, {**metadata, "tokenizer.ggml.pre": name}) as oracle:
            goldens[name] = tokenizer_goldens.make(oracle.tokenize, OWN_COUNT if name == own else RULE_COUNT)
        print(name)
    tokenizer_goldens.write("pretokenizers", goldens)


def make_pieces(server: Path) -> None:
    goldens = {}
    for name, metadata in sentencepiece_models.MODELS.items():
        with llama_tokenizer(server, metadata) as oracle:
            goldens[name] = tokenizer_goldens.make(oracle.tokenize, RULE_COUNT)
        print(name)
    tokenizer_goldens.write("pieces", goldens)


def make_gemma(server: Path) -> None:
    with llama_tokenizer(server, tokenizer_metadata("gemma-3-270m")) as oracle:
        tokenizer_goldens.write("gemma-3-270m", {"gemma-3-270m": tokenizer_goldens.make(oracle.tokenize, OWN_COUNT)})


def main() -> None:
    server, wanted = Path(sys.argv[1]), sys.argv[2:] or ["pretokenizers", "pieces", "gemma"]
    for name, make in (("pretokenizers", make_pretokenizers), ("pieces", make_pieces), ("gemma", make_gemma)):
        if name in wanted:
            make(server)


if __name__ == "__main__":
    main()
