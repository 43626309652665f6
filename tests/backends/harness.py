"""Tiny recorded plans on any backend, and the bookkeeping to step them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from octavo import _native
from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.ops import (
    AttentionOp,
    Batch,
    Buffer,
    Floats,
    KvSpec,
    Norm,
    Plan,
    PlanLimits,
    Projection,
    SlotParams,
    Weight,
)
from octavo.backends.reference.plan import ReferenceBackend
from octavo.formats.blocks import quantize
from octavo.formats.tensor import TensorType

LEVELS = _native.supported_levels()
GREEDY = SlotParams(seed=0, temperature=0.0)


def backend_of(level: str, threads: int = 2, activations: str = "auto") -> Any:
    """The reference, or the CPU backend at one ISA level."""
    return ReferenceBackend() if level == "reference" else CpuBackend(threads, level, activations)


_COUNT = itertools.count()  # names differ, as in a file


def random_weight(rng: np.random.Generator, rows: int, columns: int, type_: TensorType = TensorType.F32) -> Weight:
    values = rng.standard_normal((rows, columns), np.float32) / np.sqrt(columns)
    return Weight(quantize(f"w{next(_COUNT)}.{rows}x{columns}", values, type_))


def open_end(builder: Any, x: Buffer, width: int) -> None:
    """A head whose logits are `x` itself: with an eps this large, the norm divides every row by the same number."""
    identity = Weight(quantize("identity", np.eye(width), TensorType.F32))
    builder.head_and_sample(x, Norm(np.ones(width, np.float32), 1e12), identity, 1e6, 0.0)


@dataclass
class Sequence_:
    tokens: list[int]
    blocks: list[int] = field(default_factory=list)
    computed: int = 0


class Runner:
    """Steps one plan. Pages come in a scattered order that `seed` decides, and are handed out as sequences grow."""

    def __init__(self, plan: Plan, limits: PlanLimits, page_size: int, seed: int = 0) -> None:
        self.plan = plan
        self.limits = limits
        self._page_size = page_size
        self._pages = np.random.default_rng(seed).permutation(limits.num_pages).tolist()
        self.sequences: dict[int, Sequence_] = {}
        tokens, seqs = limits.max_tokens, limits.max_seqs
        self.batch = Batch(
            num_tokens=0,
            num_seqs=0,
            num_outputs=0,
            tokens=np.zeros(tokens, np.int32),
            positions=np.zeros((1, tokens), np.int32),
            token_seq=np.zeros(tokens, np.int32),
            query_start=np.zeros(seqs + 1, np.int32),
            context_len=np.zeros(seqs, np.int32),
            block_table=np.full((1, seqs, limits.max_blocks), -1, np.int32),
            output_rows=np.zeros(max(tokens, seqs), np.int32),
            output_slots=np.zeros(max(tokens, seqs), np.int32),
            output_targets=np.full(max(tokens, seqs), -1, np.int32),
            capture_logits=True,
        )

    def add(self, slot: int, tokens: Sequence[int], params: SlotParams = GREEDY, prompt_len: int | None = None) -> None:
        if slot in self.sequences:
            self._pages += self.sequences[slot].blocks
        self.sequences[slot] = Sequence_(list(tokens))
        prompt = len(tokens) if prompt_len is None else prompt_len
        self.plan.set_slot(slot, params, np.array(tokens, np.int32), prompt)

    def fill(self, chunks: Sequence[tuple[int, int]]) -> Batch:
        """The batch of (slot, tokens to compute); a sequence whose last known token is among them has an output row."""
        batch = self.batch
        batch.num_tokens = batch.num_outputs = 0
        batch.num_seqs = len(chunks)
        for s, (slot, count) in enumerate(chunks):
            sequence = self.sequences[slot]
            begin, end = sequence.computed, sequence.computed + count
            while len(sequence.blocks) * self._page_size < end:
                sequence.blocks.append(self._pages.pop())
            rows = slice(batch.num_tokens, batch.num_tokens + count)
            batch.tokens[rows] = sequence.tokens[begin:end]
            batch.positions[0, rows] = np.arange(begin, end)
            batch.token_seq[rows] = s
            batch.num_tokens += count
            batch.query_start[s + 1] = batch.num_tokens
            batch.context_len[s] = end
            batch.block_table[0, s] = -1
            batch.block_table[0, s, : len(sequence.blocks)] = sequence.blocks
            if end == len(sequence.tokens):
                batch.output_rows[batch.num_outputs] = batch.num_tokens - 1
                batch.output_slots[batch.num_outputs] = slot
                batch.num_outputs += 1
        return batch

    def step(self, chunks: Sequence[tuple[int, int]]) -> dict[int, tuple[int, Floats]]:
        """Run, append what was drawn, and return for each slot with an output its token and its logits."""
        sampled = self.plan.run(self.fill(chunks))
        for slot, count in chunks:
            self.sequences[slot].computed += count
        drawn = {}
        for row in range(self.batch.num_outputs):
            slot = int(self.batch.output_slots[row])
            self.sequences[slot].tokens.append(int(sampled.tokens[row]))
            assert sampled.logits is not None
            drawn[slot] = (int(sampled.tokens[row]), sampled.logits[row].copy())
        return drawn

    def generate(self, slot: int, count: int, chunk: int = 1 << 30) -> list[tuple[int, Floats]]:
        """Prefill in chunks, then draw `count` tokens, this sequence alone."""
        results: list[tuple[int, Floats]] = []
        while len(results) < count:
            sequence = self.sequences[slot]
            step = min(chunk, len(sequence.tokens) - sequence.computed)
            results += self.step([(slot, step)]).values()
        return results


def small_limits(vocab: int, max_tokens: int = 96, max_seqs: int = 96) -> PlanLimits:
    return PlanLimits(max_tokens=max_tokens, max_seqs=max_seqs, max_blocks=160, num_pages=1024, vocab=vocab)


def values_of(
    level: str,
    record: Callable[[Any], Buffer],
    width: int,
    tokens: Sequence[int],
    activations: str = "auto",
    kv: KvSpec | None = None,
) -> Floats:
    """float32 [T, width]: what `record` computes for each token, each the only one of its sequence."""
    kv = kv or KvSpec(1, 1, 16, 8, "f32")
    limits = small_limits(width)
    builder = backend_of(level, activations=activations).builder(limits, kv)
    open_end(builder, record(builder), width)
    runner = Runner(builder.finish(), limits, kv.page_size)
    for slot, token in enumerate(tokens):
        runner.add(slot, [token])
    logits = runner.plan.run(runner.fill([(slot, 1) for slot in range(len(tokens))])).logits
    assert logits is not None
    return logits


@dataclass(frozen=True)
class TinyDecoder:
    """A two-layer decoder with random weights: grouped heads, every op of the contract."""

    matrices: TensorType = TensorType.Q4_1
    vocab: int = 160
    hidden: int = 96
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 32
    ffn: int = 128
    layers: int = 2
    seed: int = 7

    def kv(self, page_size: int = 8, dtype: Any = "bf16") -> KvSpec:
        return KvSpec(self.layers, self.kv_heads, self.head_dim, page_size, dtype)

    def record(self, builder: Any) -> None:
        rng = np.random.default_rng(self.seed)
        embedding = random_weight(rng, self.vocab, self.hidden, TensorType.Q8_0)
        x = builder.embed(embedding, 3.0)
        for layer in range(self.layers):
            self._layer(builder, rng, layer, x)
        builder.head_and_sample(x, Norm(self._vector(rng), 1e-5), embedding, 4.0, 0.0)

    def _layer(self, builder: Any, rng: np.random.Generator, layer: int, x: Buffer) -> None:
        queries, stored = self.heads * self.head_dim, self.kv_heads * self.head_dim

        def projection(rows: int, columns: int) -> Projection:
            return Projection(random_weight(rng, rows, columns, self.matrices))

        normed = builder.norm(x, Norm(self._vector(rng), 1e-5))
        inputs = [projection(rows, self.hidden) for rows in (queries, stored, stored)]
        q, k, v = builder.linear(normed, inputs)
        inv_freq = (1e4 ** (-np.arange(0, self.head_dim, 2) / self.head_dim)).astype(np.float32)
        op = AttentionOp(layer, self.heads, self.kv_heads, self.head_dim, self.head_dim**-0.5, inv_freq)
        builder.rope_and_store(q, k, v, op)
        builder.linear(builder.attention(q, op), [projection(self.hidden, queries)], residual=x)
        normed = builder.norm(x, Norm(self._vector(rng), 1e-5))
        gate, up = builder.linear(normed, [projection(self.ffn, self.hidden) for _ in range(2)])
        builder.linear(builder.gated(gate, up, "silu"), [projection(self.hidden, self.ffn)], residual=x)

    def _vector(self, rng: np.random.Generator) -> Floats:
        return rng.uniform(0.5, 1.5, self.hidden).astype(np.float32)

    def runner(
        self,
        level: str,
        threads: int = 2,
        activations: str = "auto",
        page_size: int = 8,
        kv_dtype: str = "bf16",
        seed: int = 0,
    ) -> Runner:
        limits = small_limits(self.vocab, max_tokens=256, max_seqs=48)
        builder = backend_of(level, threads, activations).builder(limits, self.kv(page_size, kv_dtype))
        self.record(builder)
        return Runner(builder.finish(), limits, page_size, seed)
