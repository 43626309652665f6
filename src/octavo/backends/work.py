"""What each op has to do at the least: bytes from memory, bytes of rows, arithmetic. Counted here for every cost model.

`WorkCounter` records a decoder as a builder does and keeps of each op what its work follows from. A roofline divides
that by what a machine can do; so can a simulator, without kernels or weights in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from octavo.backends.ops import (
    Activation,
    AttentionOp,
    Buffer,
    ClampedSwiglu,
    Expert,
    Floats,
    Ints,
    KvSpec,
    Norm,
    Projection,
    Routing,
    Weight,
)

#: Operations an element of each activation.
_ACTIVATION: Mapping[Activation, int] = {"silu": 4, "gelu_tanh": 8, "gelu": 18}
_CLAMPED_SWIGLU = 8

#: The type in which an op multiplies.
Arithmetic = Literal["f32", "bf16", "int8"]


@dataclass(frozen=True, slots=True)
class Chunk:
    """One sequence's part of a step: `new` tokens, after which it has `context` (a decode has one new token)."""

    new: int
    context: int

    def keys(self, window: int) -> int:
        """Stored tokens that some new one sees; window 0: all."""
        return min(self.context, self.new + window - 1) if window else self.context

    def pairs(self, window: int) -> int:
        """(new token, token it sees): what attention's arithmetic grows with."""
        first = self.context - self.new + 1
        if not window or self.context <= window:
            return (first + self.context) * self.new // 2
        full = min(self.new, self.context - window + 1)  # tokens that see a whole window
        return full * window + Chunk(self.new - full, self.context - full).pairs(0)


@dataclass(frozen=True, slots=True)
class StepLoad:
    """What one step carries. outputs: rows that a token is drawn for."""

    chunks: tuple[Chunk, ...]
    outputs: int

    @property
    def tokens(self) -> int:
        return sum(chunk.new for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Work:
    """memory_bytes: weights and K and V, each once, since no cache holds them from one step to the next.

    row_bytes: float32 rows that an op reads and writes, which a cache holds from one op to the next. operations: by
    type; a multiply-add is two, and division, square root, exponential and sine are one each.
    """

    memory_bytes: int
    row_bytes: int
    operations: Mapping[Arithmetic, int]

    def __add__(self, other: Work) -> Work:
        operations = dict(self.operations)
        for kind, count in other.operations.items():
            operations[kind] = operations.get(kind, 0) + count
        return Work(self.memory_bytes + other.memory_bytes, self.row_bytes + other.row_bytes, operations)

    @property
    def total_operations(self) -> int:
        return sum(self.operations.values())


NOTHING = Work(0, 0, {})


@dataclass(frozen=True, slots=True)
class OpWork:
    """One op of a recorded decoder.

    op: its number in the order of recording. sampling: the drawing part of head_and_sample, which is one op but two
    entries. name: what it is, with shape and format; equal ops of different layers have equal names.
    """

    op: int
    name: str
    of: Callable[[StepLoad], Work]
    sampling: bool = False


@dataclass(slots=True)
class WorkCounter:
    """A recorder (ops.Recorder) whose result is `ops`.

    kv: what a token stores. arithmetic_of: the type that a matrix is multiplied in. attention: the same for attention.
    """

    kv: KvSpec
    arithmetic_of: Callable[[Weight], Arithmetic]
    attention_arithmetic: Arithmetic
    ops: list[OpWork] = field(default_factory=list)
    _widths: list[int] = field(default_factory=list)
    _recorded: int = 0

    def embed(self, table: Weight, scale: float) -> Buffer:
        width, stored = table.tensor.shape[1], table.tensor.row_bytes
        name = f"embed {width} {table.tensor.type.name}"
        self._add(name, lambda load: Work(stored * load.tokens, 4 * width * load.tokens, {"f32": width * load.tokens}))
        return self._buffer(width)

    def add_positions(self, x: Buffer, table: Weight) -> None:
        width, stored = table.tensor.shape[1], table.tensor.row_bytes
        name = f"positions {width} {table.tensor.type.name}"
        self._add(name, lambda load: Work(stored * load.tokens, 8 * width * load.tokens, {"f32": width * load.tokens}))

    def columns(self, sources: Sequence[Buffer], index: Ints) -> Buffer:
        width = len(index)
        self._add(f"columns {width}", lambda load: _rows(2 * width, 0, load.tokens))
        return self._buffer(width)

    def norm(self, x: Buffer, norm: Norm) -> Buffer:
        width = self._widths[x]
        self._add(f"norm {width}", lambda load: _norm(width, load.tokens))
        return self._buffer(width)

    def add(self, x: Buffer, y: Buffer, scale: float) -> None:
        width = self._widths[x]
        self._add(f"add {width}", lambda load: _rows(3 * width, 2 * width, load.tokens))

    def linear(
        self, x: Buffer, projections: Sequence[Projection], residual: Buffer | None = None
    ) -> tuple[Buffer, ...]:
        outs = [_outputs(projection.weight) for projection in projections]
        inner = self._widths[x]
        kinds = [self.arithmetic_of(projection.weight) for projection in projections]
        stored = sum(
            out * projection.weight.tensor.row_bytes for out, projection in zip(outs, projections, strict=True)
        )
        moved = 4 * (inner + sum(outs) * (1 if residual is None else 2))

        def work(load: StepLoad) -> Work:
            total = Work(stored, moved * load.tokens, {})
            for out, kind in zip(outs, kinds, strict=True):
                total += Work(0, 0, {kind: 2 * load.tokens * out * inner})
            return total

        formats = "/".join(dict.fromkeys(projection.weight.tensor.type.name for projection in projections))
        labels = "+".join(_label(projection.weight.tensor.name) for projection in projections)
        self._add(f"{labels} {sum(outs)}x{inner} {formats}", work)
        return tuple(self._buffer(out) for out in outs) if residual is None else (residual,)

    def rope_and_store(self, q: Buffer, k: Buffer, v: Buffer, op: AttentionOp) -> None:
        queries, stored = op.heads * op.head_dim, op.kv_heads * op.head_dim
        kv_bytes = self._stored_bytes(op)
        rotated = 2 * len(op.inv_freq) * (op.heads + op.kv_heads)

        def work(load: StepLoad) -> Work:
            t = load.tokens
            return Work(kv_bytes * t, 4 * (2 * queries + 2 * stored) * t, {"f32": 3 * rotated * t})

        self._add(f"rope_and_store {op.heads}+{op.kv_heads} heads", work)

    def attention(self, q: Buffer, op: AttentionOp) -> Buffer:
        width, kv_bytes, window, kind = (
            op.heads * op.head_dim,
            self._stored_bytes(op),
            op.window,
            self.attention_arithmetic,
        )

        # int8 K and V are multiplied as 16 bits, each product the work of two of 8 bits.
        each = 8 if kind == "int8" else 4

        def work(load: StepLoad) -> Work:
            keys = sum(chunk.keys(window) for chunk in load.chunks)
            pairs = sum(chunk.pairs(window) for chunk in load.chunks)
            return Work(kv_bytes * keys, 8 * width * load.tokens, {kind: each * width * pairs})

        shown = f"attention {op.heads}/{op.kv_heads} heads of {op.head_dim} {self.kv.dtype}"
        self._add(shown + (f" window {window}" if window else ""), work)
        return self._buffer(width)

    def gated(self, gate: Buffer, up: Buffer, activation: Activation) -> Buffer:
        width = self._widths[gate]
        each = _ACTIVATION[activation] + 1
        self._add(f"{activation} {width}", lambda load: _rows(3 * width, each * width, load.tokens))
        return self._buffer(width)

    def activation(self, x: Buffer, activation: Activation) -> Buffer:
        width, each = self._widths[x], _ACTIVATION[activation]
        self._add(f"{activation} {width} alone", lambda load: _rows(2 * width, each * width, load.tokens))
        return self._buffer(width)

    def moe(
        self,
        x: Buffer,
        router: Projection,
        correction: Floats | None,
        experts: Sequence[Expert],
        routing: Routing,
        activation: Activation | ClampedSwiglu,
    ) -> Buffer:
        """As if no two tokens shared an expert while there are others: what few tokens read, and the most ever."""
        parts = (experts[0].gate.weight, experts[0].up.weight, experts[0].down.weight)
        inner, hidden, outer = self._widths[x], _outputs(parts[1]), _outputs(parts[2])
        stored = sum(_outputs(part) * part.tensor.row_bytes for part in parts)
        routes = routing.experts * router.weight.tensor.row_bytes
        each = _CLAMPED_SWIGLU if isinstance(activation, ClampedSwiglu) else _ACTIVATION[activation] + 1
        kind, router_kind = self.arithmetic_of(parts[1]), self.arithmetic_of(router.weight)

        def work(load: StepLoad) -> Work:
            rows = load.tokens * routing.used
            read = routes + stored * min(routing.experts, rows)
            moved = 4 * (inner + outer) * load.tokens + 4 * (inner + 3 * hidden + outer) * rows
            total = Work(read, moved, {"f32": rows * (each * hidden + 2 * outer)})
            total += Work(0, 0, {kind: 2 * rows * hidden * (2 * inner + outer)})
            return total + Work(0, 0, {router_kind: 2 * load.tokens * routing.experts * inner})

        shape = f"{routing.used} of {routing.experts} experts {hidden}x{inner}"
        self._add(f"moe {shape} {parts[1].tensor.type.name}", work)
        return self._buffer(outer)

    def head_and_sample(self, x: Buffer, norm: Norm, head: Weight, scale: float, softcap: float) -> None:
        vocab, inner, stored = _outputs(head), self._widths[x], head.tensor.row_bytes
        kind = self.arithmetic_of(head)

        def multiply(load: StepLoad) -> Work:
            rows = load.outputs
            matrix = Work(stored * vocab if rows else 0, 4 * (inner + vocab) * rows, {kind: 2 * rows * vocab * inner})
            return _norm(inner, rows) + matrix

        self._add(f"head {vocab}x{inner} {head.tensor.type.name}", multiply)
        self._recorded -= 1  # the same op
        self._add(f"sample {vocab}", lambda load: _rows(vocab, vocab, load.outputs), sampling=True)

    def _stored_bytes(self, op: AttentionOp) -> int:
        """K and V of one token in one layer."""
        return self.kv.bytes_per_token // self.kv.layers

    def _add(self, name: str, work: Callable[[StepLoad], Work], sampling: bool = False) -> None:
        self.ops.append(OpWork(self._recorded, name, work, sampling))
        self._recorded += 1

    def _buffer(self, width: int) -> Buffer:
        self._widths.append(width)
        return Buffer(len(self._widths) - 1)


def _rows(floats: int, operations: int, rows: int) -> Work:
    return Work(0, 4 * floats * rows, {"f32": operations * rows})


def _norm(width: int, rows: int) -> Work:
    return _rows(2 * width, 4 * width, rows)


def _outputs(weight: Weight) -> int:
    return weight.tensor.shape[0] if weight.row_index is None else len(weight.row_index)


def _label(name: str) -> str:
    """blk.3.attn_q.weight -> attn_q; model.layers.3.self_attn.q_proj.weight -> q_proj."""
    return name.removesuffix(".weight").rpartition(".")[2]
