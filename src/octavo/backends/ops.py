"""The op contract: what a decoder may ask of a backend, and the plan that comes out.

A decoder calls a `Builder` once. The result is a `Plan`: a flat op list, symbolic in tokens T, sequences S and output
rows R, bound to weights and buffers. A step is one `plan.run(batch)`.

Batch invariance (docs/promises/same-tokens.md): for each output element the order of every reduction depends only on
the op's own inner size, or on the token's own absolute position; never on T, S, R, threads, chunks or pages.
The numpy implementation in backends/reference is the specification of each op's value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NewType, Protocol

import numpy as np
import numpy.typing as npt

from octavo.backends.kv_types import KV_TYPES, KvDtype
from octavo.formats.tensor import Tensor

Ints = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]

#: Elementwise: x * sigmoid(x); gelu in its tanh form (Hendrycks and Gimpel, 2016); gelu with the error function.
Activation = Literal["silu", "gelu_tanh", "gelu"]

#: Bytes of a cache line, which a page is made of whole numbers of.
_PAGE_ALIGNMENT = 64

#: Handle of a row buffer [T, width] of float32, made by a builder.
Buffer = NewType("Buffer", int)


class UnsupportedError(ValueError):
    """A backend can't do what was asked (format, KV type, ISA level); the message names it and what is supported."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix [out, in] as stored; `row_index` int32 [out] picks the stored row of each output (un-permuting).

    Columns are in the order of the input: what is stored otherwise (`Tensor.order`), a decoder brings its input to.
    """

    tensor: Tensor
    row_index: Ints | None = None


@dataclass(frozen=True, slots=True)
class Projection:
    """One matrix of a linear group; `bias` float32 [out] or None."""

    weight: Weight
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """A norm of rows. kind "rms": x / sqrt(mean(x^2) + eps) * weight (Zhang and Sennrich, 2019); "layer": the same of
    x - mean(x), plus bias (Ba et al., 2016).

    weight, bias float32 [width]; bias None: none (always None with "rms"). groups: a row is that many equal parts, each
    with its own mean.
    """

    weight: Floats
    eps: float
    kind: Literal["rms", "layer"] = "rms"
    bias: Floats | None = None
    groups: int = 1


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """gpt-oss' gate: g = min(gate, limit), u = clip(up, -limit, limit), g * sigmoid(alpha * g) * (u + 1)."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class Routing:
    """Which `used` of `experts` a token goes to, and with what weights.

    scoring: "softmax" or "sigmoid" of the router's logits; "chosen": the logits themselves, and softmax over the chosen
    ones. The largest scores are chosen, ties go to the lower expert; a correction (see Builder.moe) is added for the
    choice only. groups: experts in that many equal runs, of which only the `used_groups` best take part; a run counts
    as the sum of its two best ("top2") or as its best ("max"). normalise: weights are divided by their sum. scale
    multiplies them.
    """

    experts: int
    used: int
    scoring: Literal["softmax", "sigmoid", "chosen"] = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: int = 1
    used_groups: int = 1
    group_score: Literal["top2", "max"] = "top2"


@dataclass(frozen=True, slots=True)
class Expert:
    """The matrices of one expert."""

    gate: Projection
    up: Projection
    down: Projection


@dataclass(frozen=True, slots=True)
class AttentionOp:
    """Shapes and constants of one layer's attention; `layer` counts within the KV group, which is `group`.

    inv_freq float32 [rotary_dim / 2] (scaling applied; empty: no rotation), amplitude multiplies sin and cos;
    q_norm/k_norm float32 [head_dim]: RMS norm of each head before rotation; window 0: full; softcap 0: none;
    sinks float32 [heads] or None.
    """

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    inv_freq: Floats
    amplitude: float = 1.0
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    norm_eps: float = 1e-6
    window: int = 0
    softcap: float = 0.0
    sinks: Floats | None = None
    group: int = 0


@dataclass(frozen=True, slots=True)
class KvSpec:
    """The KV memory of one group of equal layers. Page-major: [page][layer][K|V][kv head][...], and scales behind the
    layers of a page if the type has any (csrc/kernels.h).

    window: of what this group has stored for a sequence, only the last so many tokens, the one being computed included,
    need be there; no layer of the group sees more. 0: all of it. bytes_per_token: without what fills a page up to whole
    cache lines.
    """

    layers: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: KvDtype
    window: int = 0

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * KV_TYPES[self.dtype].head_bytes(self.head_dim)

    @property
    def page_bytes(self) -> int:
        return -(-self.bytes_per_token * self.page_size // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """Largest values of the symbolic sizes, and the vocabulary; buffers are allocated once for these. groups: of KV."""

    max_tokens: int
    max_seqs: int
    max_blocks: int
    num_pages: int
    vocab: int
    groups: int = 1


@dataclass(slots=True)
class Batch:
    """The arrays of one step; int32, C-contiguous, allocated once at the limits and updated in place.

    tokens [T], positions [1, T], token_seq [T] (batch row of each token), query_start [S + 1], context_len [S] (tokens
    of the sequence after this step), block_table [G, S, B] (G KV groups; what it holds for blocks that a group's window
    has passed means nothing), output_rows [R] (row in T to sample from), output_slots [R] (sampler slot of each),
    output_targets [R] (-1: a token is drawn from the row; else the token, of the prompt, whose log-probability there is
    asked for). Only the first T/S/R entries count, R <= max(max_tokens, max_seqs); the token drawn for row r stands at
    absolute position context_len of its sequence. capture_logits: also return float32 [R, vocab] untouched logits
    (tests).
    """

    num_tokens: int
    num_seqs: int
    num_outputs: int
    tokens: Ints
    positions: Ints
    token_seq: Ints
    query_start: Ints
    context_len: Ints
    block_table: Ints
    output_rows: Ints
    output_slots: Ints
    output_targets: Ints
    capture_logits: bool = False


@dataclass(slots=True)
class Sampled:
    """What a step drew: tokens int32 [R]; logprobs float32 [R]; top_ids/top_logprobs [R, L]; logits float32 [R, vocab].

    A row with a target has it as its token. The last four are None when nobody asked. Unused top entries are -1 / 0.
    """

    tokens: Ints
    logprobs: Floats | None = None
    top_ids: Ints | None = None
    top_logprobs: Floats | None = None
    logits: Floats | None = None


@dataclass(frozen=True, slots=True)
class Dry:
    """Penalties on repetitions (backends/reference/dry.py). last_n: tokens looked back on, -1 for all.

    breakers: token sequences that no repetition reaches across.
    """

    multiplier: float
    base: float = 1.75
    allowed_length: int = 2
    last_n: int = -1
    breakers: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class SlotParams:
    """Sampling of one slot, in the sampler's own terms. temperature < 1e-5 is greedy; top_k 0, top_p 1, min_p 0: off.

    eos_ids are banned until min_tokens have been drawn; bad_words are token sequences that are never completed;
    allowed_ids None: all. logprobs -1: none. processed_logprobs: of the distribution that is drawn from.
    prompt_logprobs: as logprobs, for rows with a target; always of the untouched logits.
    """

    seed: int
    choice: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    logprobs: int = -1
    min_tokens: int = 0
    eos_ids: tuple[int, ...] = ()
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    dry: Dry | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    processed_logprobs: bool = False
    prompt_logprobs: int = -1


@dataclass(frozen=True, slots=True)
class OpTime:
    """Wall time of one kind of op since profiling began, as the thread that calls `run` saw it.

    op: number of the op in the order of recording; -1: all of that kind together. wait_s: the part in which that thread
    found no work and waited for others. stages: how often the kind ran.
    """

    op: int
    name: str
    stages: int
    total_s: float
    wait_s: float


class Plan(Protocol):
    """A recorded model bound to a device."""

    def set_slot(self, slot: int, params: SlotParams, tokens: Ints, prompt_len: int) -> None:
        """A sequence takes a sampler slot; `tokens` int32 [n] are all it has so far (penalties count them).

        `run` itself appends every token it draws to the slot's counts.
        """

    def copy_pages(self, pairs: Ints) -> None:
        """pairs int32 [C, 2]: copy the bytes of page pairs[i, 0] to page pairs[i, 1]."""

    def run(self, batch: Batch) -> Sampled:
        """One forward pass, sampling included. The returned arrays are valid until the next call."""

    def set_profiling(self, on: bool) -> None:
        """Time the ops from now on, or stop. Where it is off, it costs nothing."""

    def profile(self) -> list[OpTime]:
        """Where `run` spent its time while profiling was on, by kind of op; empty if this backend can't tell."""


class Recorder(Protocol):
    """Records ops. Row buffers are float32 [T, width]; every op may run in place where it says so."""

    def embed(self, table: Weight, scale: float) -> Buffer:
        """out[t] = table[tokens[t]] * scale; token ids have been checked against the vocabulary."""

    def add_positions(self, x: Buffer, table: Weight) -> None:
        """x[t] += table[positions[t]] in place; the table has a row for every position that a step may hold."""

    def columns(self, sources: Sequence[Buffer], index: Ints) -> Buffer:
        """out[t, i] = the sources' rows t side by side, at index[i]; 0 where that is -1. index int32 [width of out]."""

    def norm(self, x: Buffer, norm: Norm) -> Buffer:
        """out[t] = norm of x[t], see Norm."""

    def add(self, x: Buffer, y: Buffer, scale: float) -> None:
        """x[t] += y[t] * scale in place."""

    def linear(
        self, x: Buffer, projections: Sequence[Projection], residual: Buffer | None = None
    ) -> tuple[Buffer, ...]:
        """A linear group: out_i = x @ W_i^T + bias_i for projections of one input, which is quantised once.

        residual (one projection only): the result is added to that buffer in place, and it is what is returned.
        """

    def rope_and_store(self, q: Buffer, k: Buffer, v: Buffer, op: AttentionOp) -> None:
        """Normalise (if asked) and rotate each head of q in place and of k; write k and v into the sequences' pages.

        q [T, heads * head_dim], k and v [T, kv_heads * head_dim].
        """

    def attention(self, q: Buffer, op: AttentionOp) -> Buffer:
        """Causal attention of each token over its sequence's stored K and V, its own included. -> like q.

        Any mix of chunks and decodes. K and V are always read back as stored. Scores are q.k * scale, then
        softcap * tanh(s / softcap) if softcap, then softmax over keys in (position - window, position], with
        exp(sink) added to the denominator if sinks.
        """

    def gated(self, gate: Buffer, up: Buffer, activation: Activation) -> Buffer:
        """out = activation(gate) * up."""

    def activation(self, x: Buffer, activation: Activation) -> Buffer:
        """out = activation(x)."""

    def moe(
        self,
        x: Buffer,
        router: Projection,
        correction: Floats | None,
        experts: Sequence[Expert],
        routing: Routing,
        activation: Activation | ClampedSwiglu,
    ) -> Buffer:
        """out = the sum over the chosen experts, by ascending expert, of weight * down(activation(gate(x)) * up(x)).

        router: [experts, width]; correction float32 [experts] or None. All experts have the same shapes, and are
        multiplied in the same activation type.
        """

    def head_and_sample(self, x: Buffer, norm: Norm, head: Weight, scale: float, softcap: float) -> None:
        """For each output row: norm, logits = head @ x * scale (softcapped if asked), then sampling (DESIGN 8)."""


class Builder(Recorder, Protocol):
    """A recorder that makes a plan of what it was told."""

    def finish(
        self, progress: Callable[[float], None] | None = None, release: Callable[[str], None] | None = None
    ) -> Plan:
        """Pack weights and bind buffers.

        `progress` gets the share done, 0 to 1. `release` gets the name of each tensor whose stored bytes are no longer
        needed, so that its file's memory can be given back; a backend that keeps reading them doesn't call it.
        """


class Backend(Protocol):
    """A device. `builder` allocates the KV pool lazily: pages hold zeros until written.

    One pool for all groups: its pages have the size of the largest group's, and a page belongs to one group at a time.
    The groups have one page_size and one dtype. Raises UnsupportedError for what can't be held.
    """

    name: str
    facts: dict[str, str]  # ISA level, threads, activation type: what system_fingerprint covers

    def builder(self, limits: PlanLimits, *kv: KvSpec) -> Builder: ...
