"""A model as its file describes it: config.json or GGUF metadata under one set of names, checked and bounded.

A family's spec is written once against this. Where the two formats say a thing under different names, a getter takes
both; where only one says it, the other name is empty and the default holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from octavo.backends.ops import Activation, Routing
from octavo.models import rope_fields
from octavo.models.fields import Fields
from octavo.models.rope import DynamicNtk, Rope
from octavo.models.slots import TensorFile
from octavo.models.spec import MLP, Attention, DecoderSpec, LayerSpec, MoE, NormSpec

_MAX_EXPERTS = 1024
_ROUTING = Routing(1, 1)
_MAX_LAYERS, _MAX_HEADS, _MAX_WIDTH, _MAX_VOCAB, _MAX_CONTEXT = 1024, 1024, 1 << 18, 1 << 22, (1 << 31) - 1

#: What config.json calls the activations; gelu_new and gelu_pytorch_tanh are the same function.
_ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
}  # fmt: skip


class Description:
    """One model file. architecture: its name in config.json or GGUF. in_gguf: which of the two it is.

    aliases: config.json's own names of this family for what most call by another ("hidden_size": "n_embd").
    """

    def __init__(self, architecture: str, fields: Fields, file: TensorFile, in_gguf: bool) -> None:
        self.architecture = architecture
        self.fields = fields
        self.file = file
        self.in_gguf = in_gguf
        self._aliases: Mapping[str, str] = {}

    def with_aliases(self, aliases: Mapping[str, str]) -> Description:
        """The same, read under a family's own names."""
        described = Description(self.architecture, self.fields, self.file, self.in_gguf)
        described._aliases = aliases
        return described

    # ------------------------------------------------------------------------------------------------------- getters

    def name(self, config: str, gguf: str) -> str:
        """The field's name in this file; empty if this format has none."""
        if self.in_gguf:
            return f"{self.architecture}.{gguf}" if gguf else ""
        return self._aliases.get(config, config)

    def has(self, config: str, gguf: str = "") -> bool:
        name = self.name(config, gguf)
        return bool(name) and self.fields.has(name)

    def integer(self, config: str, gguf: str, low: int, high: int, default: int | None = None) -> int:
        name = self.name(config, gguf)
        if not name and default is not None:
            return default
        return self.fields.integer(name, low, high, default)

    def number(self, config: str, gguf: str, low: float, high: float, default: float | None = None) -> float:
        name = self.name(config, gguf)
        if not name and default is not None:
            return default
        return self.fields.number(name, low, high, default)

    def flag(self, config: str, gguf: str, default: bool) -> bool:
        name = self.name(config, gguf)
        return self.fields.flag(name, default) if name else default

    # -------------------------------------------------------------------------------------------------------- shapes

    @property
    def layers(self) -> int:
        return self.integer("num_hidden_layers", "block_count", 1, _MAX_LAYERS)

    @property
    def hidden(self) -> int:
        return self.integer("hidden_size", "embedding_length", 1, _MAX_WIDTH)

    @property
    def heads(self) -> int:
        return self.integer("num_attention_heads", "attention.head_count", 1, _MAX_HEADS)

    @property
    def kv_heads(self) -> int:
        kv_heads = self.integer("num_key_value_heads", "attention.head_count_kv", 1, _MAX_HEADS, self.heads)
        if self.heads % kv_heads:
            name = self.name("num_key_value_heads", "attention.head_count_kv")
            raise self.fields.error(name, f"is {kv_heads}; it must divide the number of heads, {self.heads}")
        return kv_heads

    @property
    def head_dim(self) -> int:
        return self.integer("head_dim", "attention.key_length", 2, _MAX_WIDTH, max(2, self.hidden // self.heads))

    @property
    def context(self) -> int:
        default = None if self.in_gguf else 2048
        return self.integer("max_position_embeddings", "context_length", 1, _MAX_CONTEXT, default)

    @property
    def window(self) -> int:
        """The sliding window in tokens, 0 if there is none."""
        return self.integer("sliding_window", "attention.sliding_window", 0, _MAX_CONTEXT, 0)

    # --------------------------------------------------------------------------------------------------------- parts

    def rms_norm(self) -> NormSpec:
        eps = None if self.in_gguf else 1e-6
        return NormSpec(self.number("rms_norm_eps", "attention.layer_norm_rms_epsilon", 0.0, 1.0, eps))

    def layer_norm(self, bias: bool = True) -> NormSpec:
        eps = None if self.in_gguf else 1e-5
        return NormSpec(self.number("layer_norm_eps", "attention.layer_norm_epsilon", 0.0, 1.0, eps), "layer", bias)

    def rope(self, kind: str | None = None, interleaved: bool = False, share: float = 1.0, whole: bool = True) -> Rope:
        """The rotary embedding; `kind` and `share` as in rope_fields.from_config, `interleaved` as in Rope, `whole`
        as in Yarn (config.json says it itself)."""
        if self.in_gguf:
            rope = rope_fields.from_gguf(self.fields, self.architecture, self.head_dim, self.file, whole)
        else:
            theta_name = self._aliases.get("rope_theta", "rope_theta")
            rope = rope_fields.from_config(self.fields, self.head_dim, kind, theta_name, share)
        return replace(rope, interleaved=interleaved)

    def attention(self, rope: Rope | None) -> Attention:
        """Attention without biases (config.json: unless it says so; GGUF: unless it holds them) and windows."""
        bias = self.holds("attn_q.bias") if self.in_gguf else self.flag("attention_bias", "", False)
        output_bias = self.holds("attn_output.bias") if self.in_gguf else bias
        head_dim = self.head_dim
        return Attention(self.heads, self.kv_heads, head_dim, head_dim**-0.5, rope, bias=bias, output_bias=output_bias)

    def mlp(self, activation: Activation = "silu", gated: bool = True, hidden: int | None = None) -> MLP:
        """The feed-forward, `hidden` wide unless the file says otherwise; an error if it names another activation."""
        self._refuse_other_activations(activation)
        hidden = self.integer("intermediate_size", "feed_forward_length", 1, _MAX_WIDTH, hidden)
        bias = self.holds("ffn_down.bias") if self.in_gguf else self.flag("mlp_bias", "", False)
        return MLP(hidden, activation, bias, gated)

    def _refuse_other_activations(self, wanted: Activation) -> None:
        for field in () if self.in_gguf else ("hidden_activation", "hidden_act"):
            name = self._aliases.get(field, field)
            if self.fields.has(name):
                text = self.fields.text(name)
                if _ACTIVATIONS.get(text) != wanted:
                    known = ", ".join(repr(name) for name, value in _ACTIVATIONS.items() if value == wanted)
                    raise self.fields.error(name, f"is {text!r}; a {self.architecture} is run with {known} only")
                return

    def moe(self, count: str, hidden: tuple[str, str], routing: Routing = _ROUTING) -> MoE:
        """Experts, silu-gated: `count` is config.json's name of their number, `hidden` both names of their width;
        `routing` is taken over but for the numbers of experts."""
        experts = self.integer(count, "expert_count", 1, _MAX_EXPERTS)
        used = self.integer("num_experts_per_tok", "expert_used_count", 1, experts)
        self._refuse_other_activations("silu")
        width = self.integer(*hidden, 1, _MAX_WIDTH)
        return MoE(width, replace(routing, experts=experts, used=used))

    def windows(self, sliding: bool, full_every: int = 0) -> list[bool]:
        """For each layer whether it has the window: `layer_types` says, else (if `sliding`) all layers but each
        `full_every`-th."""
        types = self.fields.texts("layer_types") if not self.in_gguf else []
        if not types:
            return [sliding and not (full_every and (i + 1) % full_every == 0) for i in range(self.layers)]
        if len(types) != self.layers:
            raise self.fields.error("layer_types", f"has {len(types)} entries; the model has {self.layers} layers")
        for kind in types:
            if kind not in ("full_attention", "sliding_attention"):
                raise self.fields.error(
                    "layer_types", f"holds {kind!r}; supported are 'full_attention' and 'sliding_attention'"
                )
        return [kind == "sliding_attention" for kind in types]

    def windowed(self, layer: LayerSpec, windows: list[bool], window: int | None = None) -> tuple[LayerSpec, ...]:
        """`layer` for every layer, with the sliding window where `windows` says so."""
        size = self.window if window is None else window
        sliding = layer.with_window(size)
        return tuple(sliding if has else layer for has in windows)

    def holds(self, name: str) -> bool:
        """Whether GGUF's first layer has a tensor of this name."""
        return f"blk.0.{name}" in self.file

    def decoder(self, layers: tuple[LayerSpec, ...], tied_by_default: bool = False) -> DecoderSpec:
        """The whole, with the final norm of the layers' kind."""
        if self.in_gguf:
            vocab = self.file.tensor("token_embd.weight").shape[0] if "token_embd.weight" in self.file else 1
            tied = "output.weight" not in self.file
        else:
            vocab = self.integer("vocab_size", "", 1, _MAX_VOCAB)
            tied = self.flag("tie_word_embeddings", "", tied_by_default)
        context = self.context
        rope = layers[0].mixer.rope
        if rope is not None and isinstance(rope.beyond, DynamicNtk):  # config.json gives the context before scaling
            context = int(context * rope.beyond.factor)
        return DecoderSpec(self.architecture, vocab, self.hidden, layers, layers[0].norm, tied, context)
