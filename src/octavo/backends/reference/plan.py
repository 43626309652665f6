"""The recorded plan in numpy: a list of closures over row buffers, replayed for every batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from octavo.backends.ops import (
    Activation,
    AttentionOp,
    Batch,
    Buffer,
    ClampedSwiglu,
    Expert,
    Floats,
    Ints,
    KvSpec,
    Norm,
    OpTime,
    PlanLimits,
    Projection,
    Routing,
    Sampled,
    SlotParams,
    UnsupportedError,
    Weight,
)
from octavo.backends.reference import experts as experts_of
from octavo.backends.reference import functions
from octavo.backends.reference.kv import KvMemory
from octavo.backends.reference.sampling import SamplerSlot, log_softmax, top
from octavo.formats.blocks import dequantize


@dataclass(slots=True)
class _State:
    """What the ops of one run read and write: the batch, its rows' places in the pages of each group, and the row
    buffers."""

    batch: Batch
    pages: Ints
    offsets: Ints
    buffers: list[Floats]
    sampled: Sampled | None = None


_Op = Callable[[_State], None]


class ReferenceBackend:
    """Numpy on the calling thread. Activations are float32 whatever the weights' format."""

    name = "reference"

    def __init__(self, activations: str = "auto") -> None:
        if activations not in ("auto", "f32"):
            raise UnsupportedError(f"activations is {activations!r}; the reference backend has f32 only.")
        self.facts = {"backend": "reference", "isa": "numpy " + np.__version__, "threads": "1", "activations": "f32"}

    def builder(self, limits: PlanLimits, *kv: KvSpec) -> ReferenceBuilder:
        return ReferenceBuilder(limits, kv)


class ReferenceBuilder:
    """Records each op as a closure; see ops.Builder for what they mean.

    Each group has an array of all pages, of which it uses those that are its own at the time.
    """

    def __init__(self, limits: PlanLimits, kv: Sequence[KvSpec]) -> None:
        self._limits = limits
        self._kv = [KvMemory(group, limits.num_pages) for group in kv]
        self._page_size = kv[0].page_size
        self._slots: dict[int, SamplerSlot] = {}
        self._ops: list[_Op] = []
        self._buffers = 0
        self._matrices: dict[int, tuple[Weight, Floats]] = {}

    def embed(self, table: Weight, scale: float) -> Buffer:
        matrix, out = self._matrix(table), self._new_buffer()

        def op(state: _State) -> None:
            state.buffers[out] = matrix[state.batch.tokens[: state.batch.num_tokens]] * np.float32(scale)

        return self._record(op, out)

    def add_positions(self, x: Buffer, table: Weight) -> None:
        matrix = self._matrix(table)

        def op(state: _State) -> None:
            state.buffers[x] = state.buffers[x] + matrix[state.batch.positions[0, : state.batch.num_tokens]]

        self._ops.append(op)

    def columns(self, sources: Sequence[Buffer], index: Ints) -> Buffer:
        out, given = self._new_buffer(), tuple(sources)

        def op(state: _State) -> None:
            rows = [state.buffers[source] for source in given]
            beside = np.concatenate([*rows, np.zeros((len(rows[0]), 1), np.float32)], axis=1)  # -1 is the last
            state.buffers[out] = beside[:, index]

        return self._record(op, out)

    def norm(self, x: Buffer, norm: Norm) -> Buffer:
        out = self._new_buffer()

        def op(state: _State) -> None:
            state.buffers[out] = functions.norm(state.buffers[x], norm)

        return self._record(op, out)

    def add(self, x: Buffer, y: Buffer, scale: float) -> None:
        def op(state: _State) -> None:
            state.buffers[x] = state.buffers[x] + state.buffers[y] * np.float32(scale)

        self._ops.append(op)

    def linear(
        self, x: Buffer, projections: Sequence[Projection], residual: Buffer | None = None
    ) -> tuple[Buffer, ...]:
        if residual is not None and len(projections) != 1:
            raise ValueError(f"a residual needs exactly one projection, not {len(projections)}")
        outs = []
        for projection in projections:
            matrix = self._matrix(projection.weight)
            outs.append(self._linear(x, matrix, projection.bias, residual))
        return tuple(outs)

    def _linear(self, x: Buffer, matrix: Floats, bias: Floats | None, residual: Buffer | None) -> Buffer:
        if residual is not None:
            target = residual

            def add(state: _State) -> None:
                state.buffers[target] = state.buffers[target] + functions.linear(state.buffers[x], matrix, bias)

            return self._record(add, target)
        out = self._new_buffer()

        def assign(state: _State) -> None:
            state.buffers[out] = functions.linear(state.buffers[x], matrix, bias)

        return self._record(assign, out)

    def rope_and_store(self, q: Buffer, k: Buffer, v: Buffer, op: AttentionOp) -> None:
        def store(state: _State) -> None:
            positions = state.batch.positions[0, : state.batch.num_tokens]
            queries = state.buffers[q].reshape(-1, op.heads, op.head_dim)
            keys = state.buffers[k].reshape(-1, op.kv_heads, op.head_dim)
            values = state.buffers[v].reshape(-1, op.kv_heads, op.head_dim)
            if op.q_norm is not None:
                queries = functions.rms_norm(queries, op.q_norm, op.norm_eps)
            if op.k_norm is not None:
                keys = functions.rms_norm(keys, op.k_norm, op.norm_eps)
            queries = functions.rotate(queries, positions, op.inv_freq, op.amplitude)
            keys = functions.rotate(keys, positions, op.inv_freq, op.amplitude)
            state.buffers[q] = queries.reshape(len(positions), -1)
            self._kv[op.group].store(op.layer, state.pages[op.group], state.offsets, keys, values)

        self._ops.append(store)

    def attention(self, q: Buffer, op: AttentionOp) -> Buffer:
        out = self._new_buffer()

        def attend(state: _State) -> None:
            batch, queries, size = state.batch, state.buffers[q], self._page_size
            result = np.empty_like(queries)
            for seq in range(batch.num_seqs):
                context, first_row = int(batch.context_len[seq]), int(batch.query_start[seq])
                begin = max(0, int(batch.positions[0, first_row]) + 1 - op.window) // size if op.window else 0
                blocks = batch.block_table[op.group, seq, begin : -(-context // size)]
                keys, values = self._kv[op.group].load(op.layer, blocks, context - begin * size)
                for row in range(first_row, batch.query_start[seq + 1]):
                    seen = int(batch.positions[0, row]) + 1 - begin * size
                    heads = queries[row].reshape(op.heads, op.head_dim)
                    result[row] = functions.attend(heads, keys[:seen], values[:seen], op).reshape(-1)
            state.buffers[out] = result

        return self._record(attend, out)

    def gated(self, gate: Buffer, up: Buffer, activation: Activation) -> Buffer:
        out = self._new_buffer()

        def op(state: _State) -> None:
            state.buffers[out] = functions.gated(state.buffers[gate], state.buffers[up], activation)

        return self._record(op, out)

    def activation(self, x: Buffer, activation: Activation) -> Buffer:
        out = self._new_buffer()

        def op(state: _State) -> None:
            state.buffers[out] = functions.activate(state.buffers[x], activation)

        return self._record(op, out)

    def moe(
        self,
        x: Buffer,
        router: Projection,
        correction: Floats | None,
        experts: Sequence[Expert],
        routing: Routing,
        activation: Activation | ClampedSwiglu,
    ) -> Buffer:
        out, routes = self._new_buffer(), self._matrix(router.weight)
        bound = [[(self._matrix(p.weight), p.bias) for p in (one.gate, one.up, one.down)] for one in experts]

        def op(state: _State) -> None:
            rows = state.buffers[x]
            chosen, weights = experts_of.route(functions.linear(rows, routes, router.bias), correction, routing)
            result = np.zeros((len(rows), len(bound[0][2][0])), np.float32)
            for index, (gate, up, down) in enumerate(bound):
                at, place = np.nonzero(chosen == index)
                if len(at) == 0:
                    continue
                one, two = functions.linear(rows[at], *gate), functions.linear(rows[at], *up)
                if isinstance(activation, ClampedSwiglu):
                    active = experts_of.clamped_swiglu(one, two, activation)
                else:
                    active = functions.gated(one, two, activation)
                result[at] += functions.linear(active, *down) * weights[at, place][:, None]
            state.buffers[out] = result

        return self._record(op, out)

    def head_and_sample(self, x: Buffer, norm: Norm, head: Weight, scale: float, softcap: float) -> None:
        matrix = self._matrix(head)

        def op(state: _State) -> None:
            rows = state.batch.output_rows[: state.batch.num_outputs]
            hidden = functions.norm(state.buffers[x][rows], norm)
            logits = functions.softcapped(functions.linear(hidden, matrix, None), scale, softcap)
            state.sampled = self._sample(state.batch, logits)

        self._ops.append(op)

    def finish(
        self, progress: Callable[[float], None] | None = None, release: Callable[[str], None] | None = None
    ) -> ReferencePlan:
        if release is not None:
            for weight, _ in self._matrices.values():
                release(weight.tensor.name)
        if progress is not None:
            progress(1.0)
        return ReferencePlan(self._ops, self._buffers, self._kv, self._page_size, self._slots, self._limits.vocab)

    def _sample(self, batch: Batch, logits: Floats) -> Sampled:
        count = batch.num_outputs
        slots = [self._slots[int(slot)] for slot in batch.output_slots[:count]]
        positions = batch.context_len[batch.token_seq[batch.output_rows[:count]]]
        tokens, draws = batch.output_targets[:count].copy(), batch.output_targets[:count] < 0
        for row in np.flatnonzero(draws).tolist():
            tokens[row] = slots[row].draw(logits[row], int(positions[row]))
        sampled = Sampled(tokens, logits=logits if batch.capture_logits else None)
        asked_of = [
            slot.params.logprobs if drawn else slot.params.prompt_logprobs
            for slot, drawn in zip(slots, draws.tolist(), strict=True)
        ]
        width = max(asked_of, default=-1)
        if width >= 0:
            sampled.logprobs = np.zeros(count, np.float32)
            sampled.top_ids = np.full((count, width), -1, np.int32)
            sampled.top_logprobs = np.zeros((count, width), np.float32)
            for row, (slot, asked) in enumerate(zip(slots, asked_of, strict=True)):
                if asked >= 0:
                    processed = slot.params.processed_logprobs and draws[row]
                    logprobs = log_softmax(slot.processed if processed else logits[row])
                    sampled.logprobs[row] = logprobs[tokens[row]]
                    sampled.top_ids[row, :asked], sampled.top_logprobs[row, :asked] = top(logprobs, asked)
        return sampled

    def _matrix(self, weight: Weight) -> Floats:
        """float32 [out, in], rows in order; kept by the weight's identity so that a tied head is not doubled."""
        if id(weight) not in self._matrices:
            matrix = dequantize(weight.tensor)
            if weight.row_index is not None:
                matrix = matrix[weight.row_index]
            self._matrices[id(weight)] = (weight, matrix)
        return self._matrices[id(weight)][1]

    def _new_buffer(self) -> Buffer:
        self._buffers += 1
        return Buffer(self._buffers - 1)

    def _record(self, op: _Op, out: Buffer) -> Buffer:
        self._ops.append(op)
        return out


class ReferencePlan:
    """See ops.Plan."""

    def __init__(
        self,
        ops: list[_Op],
        buffers: int,
        kv: list[KvMemory],
        page_size: int,
        slots: dict[int, SamplerSlot],
        vocab: int,
    ) -> None:
        self._ops = ops
        self._num_buffers = buffers
        self._kv = kv
        self._page_size = page_size
        self._slots = slots
        self._vocab = vocab

    def set_slot(self, slot: int, params: SlotParams, tokens: Ints, prompt_len: int) -> None:
        self._slots[slot] = SamplerSlot.start(params, tokens, prompt_len, self._vocab)

    def copy_pages(self, pairs: Ints) -> None:
        for group in self._kv:
            group.copy(pairs)

    def set_profiling(self, on: bool) -> None:
        """Nothing: how long the specification takes says nothing."""

    def profile(self) -> list[OpTime]:
        return []

    def run(self, batch: Batch) -> Sampled:
        count = batch.num_tokens
        positions = batch.positions[0, :count]
        pages = batch.block_table[:, batch.token_seq[:count], positions // self._page_size]
        buffers: list[Floats] = [np.empty((0, 0), np.float32)] * self._num_buffers
        state = _State(batch, pages, positions % self._page_size, buffers)
        for op in self._ops:
            op(state)
        assert state.sampled is not None, "the decoder recorded no head"
        return state.sampled
