"""Where a family's tensors lie in a file: slot -> tensor name, and what else has to be known to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Fused:
    """One tensor that holds the rows of several slots, one slot after the other.

    per_head: not whole slots but heads alternate: the rows of each slot's first head, then of each slot's second, ...
    """

    tensor: str
    slots: tuple[str, ...]
    per_head: bool = False


@dataclass(frozen=True, slots=True)
class Pieces:
    """A vector cut into tensors of their own: `tensor` holds a {} for the index of each."""

    tensor: str
    count: int


@dataclass(frozen=True, slots=True)
class Stacked:
    """The same matrix (or bias) of all experts in one tensor [experts, out, in]; `index` is the expert.

    transposed: stored as [experts, in, out], unless quantised. Of the outputs every `step`-th is this slot's, from
    `first` on.
    bias: the name of the stacked biases, where it isn't the tensor's with another ending.
    """

    tensor: str
    index: int = 0
    transposed: bool = False
    first: int = 0
    step: int = 1
    bias: str = ""


@dataclass(frozen=True, slots=True)
class Exact:
    """A tensor whose name has no ending."""

    tensor: str


@dataclass(frozen=True, slots=True)
class Heads:
    """A matrix as one of each head, [heads, out, in]; transposed: [heads, in, out]."""

    tensor: str
    transposed: bool = False


Entry = str | Fused | Pieces | Stacked | Exact | Heads


@dataclass(frozen=True, slots=True)
class Names:
    """Tensor names of one family in one format.

    model and layer: slot -> name without `.weight` or `.bias`; `prefix` stands before a layer's, {} is its index. The
    slots of experts are `experts.gate` and so on there, a {} in the name is the expert.
    ignored: ends of names that carry nothing the model needs. transposed: a layer's matrices are stored as [in, out].
    norm_offset is added to the weights of all norms (Gemma stores them less one).
    """

    prefix: str
    model: Mapping[str, str]
    layer: Mapping[str, Entry]
    ignored: tuple[str, ...] = ()
    transposed: bool = False
    norm_offset: float = 0.0

    def with_layer(self, entries: Mapping[str, Entry] | None = None, **more: Entry) -> Names:
        """The same with other names for these slots of a layer."""
        return replace(self, layer={**self.layer, **(entries or {}), **more})

    def entry(self, slot: str) -> Entry:
        """The complete name of a slot's tensor: layers.3.q.bias -> blk.3.attn_q.bias."""
        ending = ".bias" if slot.endswith(".bias") else ".weight"
        bare = slot.removesuffix(".bias")
        if bare in self.model:
            return self.model[bare] + ending
        _, layer, name = bare.split(".", 2)
        prefix, expert = self.prefix.format(layer), 0
        if name.startswith("experts."):
            _, index, name = name.split(".")
            expert, name = int(index), f"experts.{name}"
        entry = self.layer[name]
        match entry:
            case str():
                return prefix + entry.replace("{}", str(expert)) + ending
            case Exact():
                return prefix + entry.tensor
            case Stacked():
                tensor = entry.tensor + ending
                if entry.bias:
                    tensor = entry.bias if ending == ".bias" else entry.tensor
                return replace(entry, tensor=prefix + tensor, index=expert)
            case _:
                return replace(entry, tensor=prefix + entry.tensor + ending)


#: What llama.cpp calls the tensors of nearly all families.
GGUF = Names(
    prefix="blk.{}.",
    model={"embed": "token_embd", "norm": "output_norm", "head": "output", "positions": "position_embd"},
    layer={
        "attn_norm": "attn_norm", "q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
        "q_norm": "attn_q_norm", "k_norm": "attn_k_norm", "attn_post_norm": "post_attention_norm",
        "ffn_norm": "ffn_norm", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down",
        "ffn_post_norm": "post_ffw_norm", "sinks": "attn_sinks", "router": "ffn_gate_inp",
        "experts.gate": Stacked("ffn_gate_exps"), "experts.up": Stacked("ffn_up_exps"),
        "experts.down": Stacked("ffn_down_exps"),
    },
    ignored=("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"),
)  # fmt: skip

#: What transformers calls them, where a family follows Llama.
HF = Names(
    prefix="model.layers.{}.",
    model={"embed": "model.embed_tokens", "norm": "model.norm", "head": "lm_head"},
    layer={
        "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
        "q": "self_attn.q_proj", "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.o_proj",
        "q_norm": "self_attn.q_norm", "k_norm": "self_attn.k_norm",
        "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
    },
    ignored=("lm_head.weight", ".self_attn.rotary_emb.inv_freq"),  # a tied head; a buffer of old checkpoints
)  # fmt: skip

#: Families that norm what a layer adds as well as what it reads, as transformers names those norms.
HF_SANDWICH = HF.with_layer(
    attn_post_norm="post_attention_layernorm",
    ffn_norm="pre_feedforward_layernorm",
    ffn_post_norm="post_feedforward_layernorm",
)

#: Fused projections, as both formats have them: q, k and v in one matrix, gate and up in one.
QKV = ("q", "k", "v")
GATE_UP = ("gate", "up")


def fused(tensor: str, slots: tuple[str, ...], per_head: bool = False) -> dict[str, Entry]:
    """Entries of `Names.with_layer` for slots that share a tensor."""
    return {slot: Fused(tensor, slots, per_head) for slot in slots}
