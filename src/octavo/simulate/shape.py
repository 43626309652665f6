"""The sizes of a decoder, as far as the time of a step depends on them."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.backends.kv_types import KV_TYPES
from octavo.models.spec import DecoderSpec
from octavo.simulate.fields import MAX_CONTEXT, Fields, shipped


@dataclass(frozen=True, slots=True)
class ModelShape:
    """ffn: width of the feed-forward, or of one expert. experts 0: there are none."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    context: int
    tied_head: bool
    experts: int = 0
    experts_per_token: int = 0

    @classmethod
    def load(cls, name: str) -> ModelShape:
        """A model file by path, or a shipped one by name. Raises FileError."""
        fields = Fields.read(shipped("models", name))
        experts = fields.integer("experts", low=0)
        used = fields.integer("experts_per_token", low=1 if experts else 0)
        if used > experts:
            raise fields.error("experts_per_token", f"is {used}; the layer has {experts} experts")
        heads, kv_heads = fields.integer("heads"), fields.integer("kv_heads")
        if heads % kv_heads:
            raise fields.error("kv_heads", f"is {kv_heads}; it must divide heads, {heads}")
        return cls(
            name=fields.text("name"),
            layers=fields.integer("layers"),
            hidden=fields.integer("hidden"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=fields.integer("head_dim"),
            ffn=fields.integer("ffn"),
            vocab=fields.integer("vocab"),
            context=fields.integer("context", high=MAX_CONTEXT),
            tied_head=fields.switch("tied_head"),
            experts=experts,
            experts_per_token=used,
        )

    @classmethod
    def of(cls, spec: DecoderSpec) -> ModelShape:
        """Of a model whose layers are alike."""
        layer = spec.layers[0]
        return cls(
            name=spec.architecture,
            layers=len(spec.layers),
            hidden=spec.hidden,
            heads=layer.mixer.heads,
            kv_heads=layer.mixer.kv_heads,
            head_dim=layer.mixer.head_dim,
            ffn=layer.ffn.hidden,
            vocab=spec.vocab,
            context=spec.context,
            tied_head=spec.tied_head,
        )

    @property
    def parameters(self) -> int:
        """Weights of matrices and the embedding; norms are left out."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        ffn = 3 * self.hidden * self.ffn * max(1, self.experts)
        embeddings = self.vocab * self.hidden * (1 if self.tied_head else 2)
        return self.layers * (attention + ffn) + embeddings

    def kv_bytes_per_token(self, kv_type: str) -> int:
        """kv_type: of backends.kv_types."""
        return 2 * self.layers * self.kv_heads * KV_TYPES[kv_type].head_bytes(self.head_dim)
