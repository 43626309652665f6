"""Records a decoder's ops; `finish` packs the weights and lowers the ops to the native plan (lowering.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo import _native
from octavo.backends.cpu import records
from octavo.backends.cpu.lowering import Lowering
from octavo.backends.cpu.packing import ActivationKinds, Packer, outputs_of
from octavo.backends.cpu.plan import CpuPlan
from octavo.backends.ops import (
    Activation,
    AttentionOp,
    Buffer,
    ClampedSwiglu,
    Expert,
    Floats,
    Ints,
    Norm,
    PlanLimits,
    Projection,
    Routing,
    Weight,
)


class CpuBuilder:
    """Records ops (ops.Builder says what they mean); `finish` packs and lowers them.

    native: an empty _native.Plan for these limits.
    """

    def __init__(self, native: _native.Plan, limits: PlanLimits, level: str, activations: str) -> None:
        self._native = native
        self._limits = limits
        self._level = level
        self._activations = activations
        self._records: list[records.Record] = []
        self._widths: list[int] = []

    def embed(self, table: Weight, scale: float) -> Buffer:
        out = self._new_buffer(table.tensor.shape[1])
        self._records.append(records.Embed(table, scale, out))
        return out

    def add_positions(self, x: Buffer, table: Weight) -> None:
        self._records.append(records.AddPositions(x, table))

    def columns(self, sources: Sequence[Buffer], index: Ints) -> Buffer:
        out = self._new_buffer(len(index))
        self._records.append(records.Columns(tuple(sources), index, out))
        return out

    def norm(self, x: Buffer, norm: Norm) -> Buffer:
        out = self._new_buffer(self._widths[x])
        self._records.append(records.Normalise(x, norm, out))
        return out

    def add(self, x: Buffer, y: Buffer, scale: float) -> None:
        self._records.append(records.Add(x, y, scale))

    def linear(
        self, x: Buffer, projections: Sequence[Projection], residual: Buffer | None = None
    ) -> tuple[Buffer, ...]:
        if residual is not None and len(projections) != 1:
            raise ValueError(f"a residual needs exactly one projection, not {len(projections)}")
        if residual is not None:
            outs: tuple[Buffer, ...] = (residual,)
        else:
            outs = tuple(self._new_buffer(outputs_of(projection.weight)) for projection in projections)
        self._records.append(records.Linear(x, tuple(projections), outs, residual is not None))
        return outs

    def rope_and_store(self, q: Buffer, k: Buffer, v: Buffer, op: AttentionOp) -> None:
        self._records.append(records.RopeAndStore(q, k, v, op))

    def attention(self, q: Buffer, op: AttentionOp) -> Buffer:
        out = self._new_buffer(self._widths[q])
        self._records.append(records.Attend(q, op, out))
        return out

    def gated(self, gate: Buffer, up: Buffer, activation: Activation) -> Buffer:
        out = self._new_buffer(self._widths[gate])
        self._records.append(records.Gated(gate, up, activation, out))
        return out

    def activation(self, x: Buffer, activation: Activation) -> Buffer:
        out = self._new_buffer(self._widths[x])
        self._records.append(records.Activate(x, activation, out))
        return out

    def moe(
        self,
        x: Buffer,
        router: Projection,
        correction: Floats | None,
        experts: Sequence[Expert],
        routing: Routing,
        activation: Activation | ClampedSwiglu,
    ) -> Buffer:
        logits, out = self._new_buffer(routing.experts), self._new_buffer(outputs_of(experts[0].down.weight))
        self._records.append(records.Moe(x, router, logits, correction, tuple(experts), routing, activation, out))
        return out

    def head_and_sample(self, x: Buffer, norm: Norm, head: Weight, scale: float, softcap: float) -> None:
        self._records.append(records.Head(x, norm, head, scale, softcap))

    def finish(
        self, progress: Callable[[float], None] | None = None, release: Callable[[str], None] | None = None
    ) -> CpuPlan:
        kinds = ActivationKinds(self._activations, self._level)
        packer = Packer(self._native, kinds, records.weights(self._records), progress, release)
        Lowering(self._native, self._records, self._widths, packer, kinds).run()
        return CpuPlan(self._native, self._limits)

    def _new_buffer(self, width: int) -> Buffer:
        self._widths.append(width)
        return Buffer(len(self._widths) - 1)
