"""The ops of one recording, as a decoder asked for them and before they are lowered (lowering.py).

Two records are equal if they are the same one: what matters of them is where they stand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from octavo.backends.ops import (
    Activation,
    AttentionOp,
    Buffer,
    ClampedSwiglu,
    Expert,
    Floats,
    Ints,
    Norm,
    Projection,
    Routing,
    Weight,
)


@dataclass(frozen=True, slots=True, eq=False)
class Embed:
    table: Weight
    scale: float
    out: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class AddPositions:
    x: Buffer
    table: Weight


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    sources: tuple[Buffer, ...]
    index: Ints
    out: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Normalise:
    x: Buffer
    norm: Norm
    out: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Add:
    """x += y * scale."""

    x: Buffer
    y: Buffer
    scale: float


@dataclass(frozen=True, slots=True, eq=False)
class Activate:
    x: Buffer
    activation: Activation
    out: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Gated:
    gate: Buffer
    up: Buffer
    activation: Activation
    out: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """`outs` are new buffers, or with `accumulate` the one that the result is added to."""

    x: Buffer
    projections: tuple[Projection, ...]
    outs: tuple[Buffer, ...]
    accumulate: bool


@dataclass(frozen=True, slots=True, eq=False)
class Moe:
    """A mixture of experts; `logits` is where the router's go."""

    x: Buffer
    router: Projection
    logits: Buffer
    correction: Floats | None
    experts: tuple[Expert, ...]
    routing: Routing
    activation: Activation | ClampedSwiglu
    out: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class RopeAndStore:
    q: Buffer
    k: Buffer
    v: Buffer
    op: AttentionOp


@dataclass(frozen=True, slots=True, eq=False)
class Attend:
    q: Buffer
    op: AttentionOp
    out: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class Head:
    x: Buffer
    norm: Norm
    weight: Weight
    scale: float
    softcap: float


Record = (
    Embed | AddPositions | Columns | Normalise | Add | Activate | Gated | Linear | Moe | RopeAndStore | Attend | Head
)


def reads(record: Record) -> Iterator[Buffer]:
    """The buffers whose values a record needs."""
    match record:
        case Normalise(x=x) | Activate(x=x) | AddPositions(x=x) | Moe(x=x) | Head(x=x):
            yield x
        case Columns(sources=sources):
            yield from sources
        case Add(x=x, y=y):
            yield from (x, y)
        case Gated(gate=gate, up=up):
            yield from (gate, up)
        case Linear(x=x, outs=outs, accumulate=accumulate):
            yield x
            if accumulate:
                yield from outs
        case RopeAndStore(q=q, k=k, v=v):
            yield from (q, k, v)
        case Attend(q=q):
            yield q


def last_uses(records: list[Record]) -> dict[Buffer, int]:
    """Index of the last record that reads each buffer."""
    return {buffer: index for index, record in enumerate(records) for buffer in reads(record)}


def readers(records: list[Record]) -> dict[Buffer, list[Record]]:
    """Every record that reads each buffer, in order; twice if it reads it twice."""
    found: dict[Buffer, list[Record]] = {}
    for record in records:
        for buffer in reads(record):
            found.setdefault(buffer, []).append(record)
    return found


def weights(records: list[Record]) -> list[Weight]:
    """Every matrix, as often as it is used."""
    found = []
    for record in records:
        match record:
            case Embed(table=weight) | AddPositions(table=weight) | Head(weight=weight):
                found.append(weight)
            case Linear(projections=projections):
                found += [projection.weight for projection in projections]
            case Moe(router=router, experts=experts):
                found.append(router.weight)
                found += [part.weight for expert in experts for part in (expert.gate, expert.up, expert.down)]
    return found
