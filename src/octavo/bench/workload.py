"""From what a user asks for (data set, lengths, seed) to requests."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from octavo.bench.completion import BenchRequest
from octavo.bench.dataset import conversations, random_requests, salted, sharegpt, single_token_words
from octavo.formats.resolve import resolve, resolve_dataset
from octavo.text.tokenizer import Tokenizer


def tokenizer_of(model: str) -> Tokenizer:
    """A model's tokenizer; `model` is a path, catalogue name or hub id. Raises ModelNotFoundError, ModelFileError."""
    return Tokenizer.load(resolve(model))


@dataclass(frozen=True, slots=True)
class Workload:
    """Which requests: `count` of them plus `warm_up` further ones.

    dataset: "random", "sharegpt" or a path. input_len, output_len and prefix_len (tokens) are for random; salt None
    leaves prompts as they are.
    """

    count: int
    warm_up: int = 0
    dataset: str = "sharegpt"
    input_len: int = 128
    output_len: int = 128
    prefix_len: int = 0
    seed: int = 0
    salt: int | None = None

    def build(self, tokenizer: Tokenizer) -> tuple[list[BenchRequest], list[BenchRequest]]:
        """(measured requests, warm-up requests). Raises ValueError, ModelNotFoundError."""
        total = self.count + self.warm_up

        def count_tokens(text: str) -> int:
            return len(tokenizer.encode(text))

        if self.dataset == "random":
            if self.prefix_len > self.input_len:
                raise ValueError(f"the shared prefix is {self.prefix_len} tokens; the prompts have {self.input_len}.")
            texts = [token.decode(errors="replace") for token in tokenizer.vocabulary.token_bytes]
            words = single_token_words(texts, count_tokens)
            requests = random_requests(total, self.input_len, self.output_len, words, self.seed, self.prefix_len)
        else:
            pairs = conversations(resolve_dataset(self.dataset))
            requests = sharegpt(pairs, total, count_tokens, self.seed)
        if self.salt is not None:
            requests = salted(requests, self.salt)
        return requests[: self.count], requests[self.count :]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
