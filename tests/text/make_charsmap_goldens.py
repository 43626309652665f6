"""Make goldens/nmt_nfkc.charsmap.xz and goldens/normalised.json: SentencePiece's normalisation, by itself.

    pip install sentencepiece protobuf && python -m tests.text.make_charsmap_goldens

The first is the map that SentencePiece puts into models by default (T5's, for one), as GGUF and tokenizer.json keep it.
The second: ids of the small unigram vocabulary of make_sentencepiece_models.py behind that map, spaces made one.
"""

from __future__ import annotations

import io
import lzma

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tests.text import tokenizer_goldens
from tests.text.make_sentencepiece_models import RANDOM_COUNT, encode
from tests.text.sentencepiece_models import CHARSMAP, STORED


def usual_normalizer() -> sentencepiece_model_pb2.NormalizerSpec:
    """What a model is trained with if nothing else is said."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a few words of any text", "and some more words"]),
        model_writer=model,
        vocab_size=25,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece_model_pb2.ModelProto.FromString(model.getvalue()).normalizer_spec


def stored_unigram(normalizer: sentencepiece_model_pb2.NormalizerSpec) -> sentencepiece.SentencePieceProcessor:
    """The stored vocabulary, behind a normalizer."""
    model = sentencepiece_model_pb2.ModelProto()
    model.trainer_spec.model_type = sentencepiece_model_pb2.TrainerSpec.UNIGRAM
    model.trainer_spec.byte_fallback = True
    model.normalizer_spec.CopyFrom(normalizer)
    for text, score, kind in STORED["unigram"]:
        model.pieces.add(piece=text, score=score, type=kind)  # GGUF's types are SentencePiece's
    return sentencepiece.SentencePieceProcessor(model_proto=model.SerializeToString())


def main() -> None:
    normalizer = usual_normalizer()
    CHARSMAP.write_bytes(lzma.compress(normalizer.precompiled_charsmap, preset=9))
    unigram = stored_unigram(normalizer)
    golden = tokenizer_goldens.make(lambda text, control: encode(unigram, text, control), RANDOM_COUNT)
    tokenizer_goldens.write("normalised", {"unigram": golden})


if __name__ == "__main__":
    main()
