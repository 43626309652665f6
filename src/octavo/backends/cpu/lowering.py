"""From recorded ops to the native plan's, fused where that saves passes over memory. None of it shows in any value.

- A norm whose only reader adds it to the residual right after is added as it is made.
- A norm or activation whose only reader is the linear group right after it writes that group's quantised input
  straight away, so the f32 row never leaves the cache.
- What comes after the last attention is computed only for rows that a token is drawn from.
- A buffer whose last reader has run is used again for the next one of its width.
- A matrix that is used twice (a tied embedding) is packed once; the embedding is gathered from the head's tiles.
"""

from __future__ import annotations

import numpy as np

from octavo import _native
from octavo.backends.cpu import records
from octavo.backends.cpu.packing import ActivationKinds, Packer
from octavo.backends.ops import AttentionOp, Buffer, ClampedSwiglu, Floats, Norm, Projection, Routing

#: Values of csrc/op_rows.h RowFunction.
_COPY, _RMS_NORM, _SILU_MUL, _GELU_TANH_MUL, _LAYER_NORM, _SILU, _GELU_TANH, _GELU, _GELU_MUL = range(9)
_NORMS = {"rms": _RMS_NORM, "layer": _LAYER_NORM}
_ACTIVATIONS = {"silu": _SILU, "gelu_tanh": _GELU_TANH, "gelu": _GELU}
_GATED = {"silu": _SILU_MUL, "gelu_tanh": _GELU_TANH_MUL, "gelu": _GELU_MUL}
#: Values of csrc/op_moe.h Scoring, GroupScore and GateFunction.
_SCORINGS = {"softmax": 0, "sigmoid": 1, "chosen": 2}
_GROUP_SCORES = {"top2": 0, "max": 1}
_GATES = {"silu": 0, "gelu_tanh": 1, "gelu": 2, "clamped": 3}
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
        self._last_attention = max(
            (index for index, record in enumerate(self._records) if isinstance(record, records.Attend)), default=_NONE
        )
        self._rows: dict[Buffer, int] = {}
        self._free: dict[int, list[int]] = {}
        self._prepared: dict[tuple[int, int], int] = {}
        self._already_prepared: set[Buffer] = set()
        self._added: set[Buffer] = set()

    def run(self) -> None:
        for index, record in enumerate(self._records):
            following = self._records[index + 1] if index + 1 < len(self._records) else None
            self._native.next_op()
            self._lower(record, following)
            if index == self._last_attention:
                self._keep_outputs()
            for buffer in set(records.reads(record)):
                if self._last_uses[buffer] == index and buffer in self._rows:
                    self._free.setdefault(self._widths[buffer], []).append(self._rows.pop(buffer))

    def _lower(self, record: records.Record, following: records.Record | None) -> None:
        native = self._native
        match record:
            case records.Embed(table=table, scale=scale, out=out):
                native.embed(self._packer.handle(table), scale, self._new_rows(out))
            case records.AddPositions(x=x, table=table):
                native.add_positions(self._rows[x], self._packer.handle(table))
            case records.Columns(sources=sources, index=index, out=out):
                rows = [self._rows[source] for source in sources]
                native.columns(rows, np.ascontiguousarray(index, np.int32), self._new_rows(out))
            case records.Normalise(x=x, norm=norm, out=out):
                if isinstance(following, records.Add) and following.y == out and self._readers[out] == [following]:
                    native.rows(self._norm(x, norm, following.scale), self._rows[following.x])
                    self._added.add(out)
                else:
                    self._rows_op(self._norm(x, norm), out, following)
            case records.Add(x=x, y=y, scale=scale):
                if y not in self._added:
                    native.rows(_native.RowsShape(_COPY, self._rows[y], add=True, scale=scale), self._rows[x])
            case records.Activate(x=x, activation=activation, out=out):
                self._rows_op(_native.RowsShape(_ACTIVATIONS[activation], self._rows[x]), out, following)
            case records.Gated(gate=gate, up=up, activation=activation, out=out):
                shape = _native.RowsShape(_GATED[activation], self._rows[gate], y=self._rows[up])
                self._rows_op(shape, out, following)
            case records.Linear():
                self._linear(record)
            case records.Moe():
                self._moe(record)
            case records.RopeAndStore(q=q, k=k, v=v, op=op):
                native.rope_and_store(self._rows[q], self._rows[k], self._rows[v], _shape(op))
            case records.Attend(q=q, op=op, out=out):
                native.attention(self._rows[q], self._new_rows(out), _shape(op))
            case records.Head(x=x, norm=norm, weight=weight, scale=scale, softcap=softcap):
                native.head(self._norm(x, norm), self._packer.handle(weight), scale, softcap)

    def _keep_outputs(self) -> None:
        """After the last attention: all that is read from here on are rows that it can be told to keep."""
        live = [buffer for buffer, last in self._last_uses.items() if last > self._last_attention]
        known = [buffer for buffer in live if buffer in self._rows]
        if not self._already_prepared.intersection(live):
            self._native.keep_outputs([self._rows[buffer] for buffer in known])

    def _norm(self, x: Buffer, norm: Norm, add_scale: float | None = None) -> _native.RowsShape:
        """The norm, or (with a scale) adding its result."""
        return _native.RowsShape(
            _NORMS[norm.kind],
            self._rows[x],
            weight=self._vector(norm.weight),
            bias=_NONE if norm.bias is None else self._vector(norm.bias),
            eps=norm.eps,
            groups=norm.groups,
            add=add_scale is not None,
            scale=1.0 if add_scale is None else add_scale,
        )

    def _rows_op(self, shape: _native.RowsShape, out: Buffer, following: records.Record | None) -> None:
        if isinstance(following, records.Linear) and following.x == out and self._readers[out] == [following]:
            for kind in self._kinds.of_all(following.projections):
                prepared = self._prepared_rows(kind, self._widths[out])
                self._native.rows_prepared(shape, prepared)
            self._already_prepared.add(out)
        else:
            self._native.rows(shape, self._new_rows(out))

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

    def _moe(self, record: records.Moe) -> None:
        """The router as a linear group, then everything else as one op."""
        routing, activation = record.routing, record.activation
        kind = self._kinds.of(record.experts[0].up.weight)
        router_kind = self._kinds.of(record.router.weight)
        logits = self._new_rows(record.logits)
        router = (*self._projection(record.router), logits)
        self._native.linear(self._prepared_input(record.x, router_kind), [router], False)
        prepared = self._prepared_input(record.x, kind)
        clamped = activation if isinstance(activation, ClampedSwiglu) else None
        self._native.moe(
            prepared=prepared,
            logits=logits,
            correction=_NONE if record.correction is None else self._vector(record.correction),
            experts=[
                (*self._projection(one.gate), *self._projection(one.up), *self._projection(one.down))
                for one in record.experts
            ],
            routing=_routing_shape(routing),
            gate=_GATES["clamped" if isinstance(activation, ClampedSwiglu) else activation],
            alpha=clamped.alpha if clamped else 0.0,
            limit=clamped.limit if clamped else 0.0,
            out=self._new_rows(record.out),
        )
        self._free.setdefault(self._widths[record.logits], []).append(self._rows.pop(record.logits))

    def _projection(self, projection: Projection) -> tuple[int, int]:
        bias = _NONE if projection.bias is None else self._vector(projection.bias)
        return self._packer.handle(projection.weight), bias

    def _prepared_input(self, x: Buffer, kind: int) -> int:
        """The prepared rows of `x`, made now unless the op before has made them."""
        prepared = self._prepared_rows(kind, self._widths[x])
        if x not in self._already_prepared:
            self._native.rows_prepared(_native.RowsShape(_COPY, self._rows[x]), prepared)
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


def _routing_shape(routing: Routing) -> _native.RoutingShape:
    return _native.RoutingShape(
        experts=routing.experts,
        used=routing.used,
        scoring=_SCORINGS[routing.scoring],
        normalise=routing.normalise,
        scale=routing.scale,
        groups=routing.groups,
        used_groups=routing.used_groups,
        group_score=_GROUP_SCORES[routing.group_score],
    )


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
        group=op.group,
    )
