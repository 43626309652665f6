"""From recorded ops to the native plan's, fused where that saves passes over memory. None of it shows in any value.

- A norm or gated activation whose only reader is the linear group right after it writes that group's quantised input
  straight away, so the f32 row never leaves the cache.
- A buffer whose last reader has run is used again for the next one of its width.
- A matrix that is used twice (a tied embedding) is packed once; the embedding is gathered from the head's tiles.
"""

from __future__ import annotations

import numpy as np

from octavo import _native
from octavo.backends.cpu import records
from octavo.backends.cpu.packing import ActivationKinds, Packer
from octavo.backends.ops import AttentionOp, Buffer, Floats, Projection

#: Values of csrc/op_rows.h RowFunction.
_COPY, _RMS_NORM, _SILU_MUL, _GELU_TANH_MUL = range(4)
_GATED = {"silu": _SILU_MUL, "gelu_tanh": _GELU_TANH_MUL}
_NONE = -1


class Lowering:
    """Walks the records once and calls the native plan."""

    def __init__(
        self,
        native: _native.Plan,
        recorded: list[records.Record],
        widths: list[int],
        packer: Packer,
        kinds: ActivationKinds,
    ) -> None:
        self._native = native
        self._records = recorded
        self._widths = widths
        self._packer = packer
        self._kinds = kinds
        self._last_uses = records.last_uses(self._records)
        self._readers = records.readers(self._records)
        self._rows: dict[Buffer, int] = {}
        self._free: dict[int, list[int]] = {}
        self._prepared: dict[tuple[int, int], int] = {}
        self._already_prepared: set[Buffer] = set()

    def run(self) -> None:
        for index, record in enumerate(self._records):
            following = self._records[index + 1] if index + 1 < len(self._records) else None
            self._native.next_op()
            self._lower(record, following)
            for buffer in set(records.reads(record)):
                if self._last_uses[buffer] == index and buffer in self._rows:
                    self._free.setdefault(self._widths[buffer], []).append(self._rows.pop(buffer))

    def _lower(self, record: records.Record, following: records.Record | None) -> None:
        native = self._native
        match record:
            case records.Embed(table=table, scale=scale, out=out):
                native.embed(self._packer.handle(table), scale, self._new_rows(out))
            case records.Norm(x=x, weight=weight, eps=eps, out=out):
                self._rows_op(_RMS_NORM, self._rows[x], _NONE, self._vector(weight), eps, out, following)
            case records.Gated(gate=gate, up=up, activation=activation, out=out):
                self._rows_op(_GATED[activation], self._rows[gate], self._rows[up], _NONE, 0.0, out, following)
            case records.Linear():
                self._linear(record)
            case records.RopeAndStore(q=q, k=k, v=v, op=op):
                native.rope_and_store(self._rows[q], self._rows[k], self._rows[v], _shape(op))
            case records.Attend(q=q, op=op, out=out):
                native.attention(self._rows[q], self._new_rows(out), _shape(op))
            case records.Head(x=x, norm=norm, eps=eps, weight=weight, scale=scale, softcap=softcap):
                native.head(self._rows[x], self._vector(norm), eps, self._packer.handle(weight), scale, softcap)

    def _rows_op(
        self, function: int, x: int, y: int, weight: int, eps: float, out: Buffer, following: records.Record | None
    ) -> None:
        if isinstance(following, records.Linear) and following.x == out and self._readers[out] == [following]:
            for kind in self._kinds.of_all(following.projections):
                prepared = self._prepared_rows(kind, self._widths[out])
                self._native.rows_prepared(function, x, y, weight, eps, prepared)
            self._already_prepared.add(out)
        else:
            self._native.rows(function, x, y, weight, eps, self._new_rows(out))

    def _linear(self, record: records.Linear) -> None:
        """One native op for each activation type among the projections; nearly always that is one."""
        for kind in self._kinds.of_all(record.projections):
            prepared = self._prepared_input(record.x, kind)
            group = []
            for projection, out in zip(record.projections, record.outs, strict=True):
                if self._kinds.of(projection.weight) == kind:
                    rows = self._rows[out] if record.accumulate else self._new_rows(out)
                    group.append((*self._projection(projection), rows))
            self._native.linear(prepared, group, record.accumulate)

    def _projection(self, projection: Projection) -> tuple[int, int]:
        bias = _NONE if projection.bias is None else self._vector(projection.bias)
        return self._packer.handle(projection.weight), bias

    def _prepared_input(self, x: Buffer, kind: int) -> int:
        """The prepared rows of `x`, made now unless the op before has made them."""
        prepared = self._prepared_rows(kind, self._widths[x])
        if x not in self._already_prepared:
            self._native.rows_prepared(_COPY, self._rows[x], _NONE, _NONE, 0.0, prepared)
        return prepared

    def _new_rows(self, buffer: Buffer) -> int:
        width = self._widths[buffer]
        free = self._free.get(width)
        self._rows[buffer] = free.pop() if free else self._native.add_rows(width)
        return self._rows[buffer]

    def _prepared_rows(self, kind: int, width: int) -> int:
        """One buffer for each type and width: what is prepared is read by the very next op."""
        key = (kind, width)
        if key not in self._prepared:
            self._prepared[key] = self._native.add_prepared(kind, width)
        return self._prepared[key]

    def _vector(self, values: Floats) -> int:
        return self._native.add_vector(np.ascontiguousarray(values, np.float32))


def _shape(op: AttentionOp) -> _native.AttentionShape:
    def values(array: Floats | None) -> list[float]:
        return [] if array is None else array.tolist()

    return _native.AttentionShape(
        layer=op.layer,
        q_heads=op.heads,
        window=op.window,
        scale=op.scale,
        softcap=op.softcap,
        amplitude=op.amplitude,
        norm_eps=op.norm_eps,
        inv_freq=values(op.inv_freq),
        q_norm=values(op.q_norm),
        k_norm=values(op.k_norm),
        sinks=values(op.sinks),
    )
