"""Records a decoder's ops; `finish` packs the weights and lowers the ops to the native plan (lowering.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from octavo import _native
from octavo.backends.cpu import records
from octavo.backends.cpu.lowering import Lowering
from octavo.backends.cpu.packing import ActivationKinds, Packer, outputs_of
from octavo.backends.cpu.plan import CpuPlan
from octavo.backends.ops import AttentionOp, Buffer, Floats, PlanLimits, Projection, Weight


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

    def norm(self, x: Buffer, weight: Floats, eps: float) -> Buffer:
        out = self._new_buffer(self._widths[x])
        self._records.append(records.Norm(x, weight, eps, out))
        return out

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

    def gated(self, gate: Buffer, up: Buffer, activation: Literal["silu", "gelu_tanh"]) -> Buffer:
        out = self._new_buffer(self._widths[gate])
        self._records.append(records.Gated(gate, up, activation, out))
        return out

    def head_and_sample(self, x: Buffer, norm: Floats, eps: float, head: Weight, scale: float, softcap: float) -> None:
        self._records.append(records.Head(x, norm, eps, head, scale, softcap))

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
