"""Make goldens/tokenizer.json: token ids by llama.cpp's own tokenizer, served by the package xllamacpp.

Run by hand in an environment with octavo and xllamacpp (the committed file: xllamacpp 2026.10.11549):

    python -m tests.text.make_tokenizer_goldens

For each pre-tokenizer name a copy of the default model is written that claims that name, so llama.cpp's rules for it
are recorded on one vocabulary.
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path

import xllamacpp
from tests.text.test_tokenizer_goldens import GOLDENS, RANDOM_COUNTS, digest
from tests.text.token_samples import FIXED, random_texts

from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.resolve import resolve


class LlamaCpp:
    """llama.cpp's server with one model."""

    def __init__(self, path: Path) -> None:
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.warmup = False
        params.n_parallel = 1
        params.n_ctx = 256
        self._server = xllamacpp.Server(params)

    def tokenize(self, text: str, control: bool) -> list[int]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": control}).encode()
        request = urllib.request.Request(
            self._server.listening_address + "/tokenize", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as response:
            return json.load(response)["tokens"]


def main() -> None:
    source = GgufFile.open(resolve("smollm2-135m-instruct").path)
    tensors = [source.tensor(name) for name in source.infos]
    goldens = {}
    for name, count in RANDOM_COUNTS.items():
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(path, {**source.metadata, "tokenizer.ggml.pre": name}, tensors)
            oracle = LlamaCpp(path)
            goldens[name] = {
                "fixed": [[oracle.tokenize(text, False), oracle.tokenize(text, True)] for text in FIXED],
                "random": "".join(digest(oracle.tokenize(text, False)) for text in random_texts(count, 0)),
            }
            del oracle
    GOLDENS.write_text(json.dumps(goldens, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
