"""How far each op of a model is from what this machine allows, and what a step's time is spent on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from octavo.backends.cpu.backend import CpuBackend
from octavo.backends.cpu.packing import BF16_AS_F32, KINDS, ActivationKinds
from octavo.backends.cpu.peaks import Peaks, measure_peaks
from octavo.backends.ops import KvSpec, UnsupportedError, Weight
from octavo.backends.work import NOTHING, Arithmetic, Chunk, OpWork, StepLoad, Work, WorkCounter
from octavo.bench.roofline_formats import FormatFigures, time_formats
from octavo.bench.roofline_steps import StepRunner, TimedStep
from octavo.config import EngineConfig
from octavo.formats.resolve import resolve
from octavo.models.decoder import record
from octavo.models.load import LoadedModel, load_model
from octavo.runtime.build import kv_spec, make_backend
from octavo.runtime.cgroup import memory_room

ROWS = (1, 8, 32, 128, 512)
#: Prefill is shown where a chunk is long enough to differ from as many decodes.
LEAST_PREFILL_ROWS = 32
DECODE_CONTEXT = 256
#: (sequences, context) of decodes and (new tokens, context) of chunks that attention is measured at beside the steps.
DECODE_ATTENTION = ((1, 1024), (1, 4096), (8, 1024), (32, 1024))
PREFILL_ATTENTION = ((512, 1024), (512, 4096))
#: Of the memory that is free, at most so much holds K and V.
_MOST_POOL_BYTES, _POOL_SHARE = 1 << 30, 0.25
#: Twice, for one thread and for all.
_PEAKS_S = 1.0

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a step is made of: `rows` decodes with that context, or one chunk of `rows` tokens that ends there."""

    kind: Literal["decode", "prefill"]
    rows: int
    context: int

    @property
    def load(self) -> StepLoad:
        if self.kind == "decode":
            return StepLoad((Chunk(1, self.context),) * self.rows, self.rows)
        return StepLoad((Chunk(self.rows, self.context),), 1)


@dataclass(frozen=True, slots=True)
class OpFigures:
    """Equal ops of all layers together. bytes: from memory and of rows. bound: what limits it; share: of that limit."""

    name: str
    count: int
    seconds: float
    bytes: int
    operations: int
    bound: str
    bound_s: float

    @property
    def share(self) -> float:
        return self.bound_s / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True)
class StepFigures:
    """A step of one shape: seconds in `plan.run`, its ops in the order of running, and what it could take at best."""

    shape: Shape
    seconds: float
    bound_s: float
    ops: tuple[OpFigures, ...]


@dataclass(frozen=True, slots=True)
class Roofline:
    """Peaks of one thread and of all that are used, every step, attention at further contexts, formats of weights."""

    complete: bool
    model: str
    facts: dict[str, str]
    peaks: tuple[Peaks, ...]
    steps: tuple[StepFigures, ...] = ()
    attention: tuple[StepFigures, ...] = ()
    formats: tuple[FormatFigures, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def run_roofline(config: EngineConfig, rows: Sequence[int], show: Show, formats: bool = False) -> Roofline:
    """Measure the machine, the model, every format if `formats` says so, and the machine again.

    `show` is told what is under way. An interrupt keeps what was measured. Raises what opening a model raises, and
    UnsupportedError for a backend without native ops.
    """
    backend = make_backend(config)
    if not isinstance(backend, CpuBackend):
        raise UnsupportedError(f"the backend is {config.backend!r}; a roofline needs the native ops of --backend cpu.")
    model = load_model(resolve(config.model))
    kv = kv_spec(model.spec, config)
    peaks = _measure_machine(backend, show)
    steps: list[tuple[Shape, TimedStep]] = []
    attention: list[tuple[Shape, TimedStep]] = []
    of_formats: list[FormatFigures] = []
    complete = False
    try:
        show("packing the model's weights")
        runner = StepRunner(model, backend, kv, max(rows), _pool_tokens(kv, model))
        for shape in shapes(rows, runner.capacity, model.spec.context):
            steps.append((shape, _timed(runner, shape, show)))
        for shape in attention_shapes(max(rows), runner.capacity, model.spec.context):
            attention.append((shape, _timed(runner, shape, show)))
        if formats:
            of_formats.extend(time_formats(backend, rows, show))
        # Other load may have come between: a peak is the best that was seen.
        peaks = tuple(one.best(other) for one, other in zip(peaks, _measure_machine(backend, show), strict=True))
        complete = True
    except KeyboardInterrupt:
        pass
    ops = count_work(model, kv, config.activations, backend.level)
    return Roofline(
        complete,
        config.model,
        {**backend.facts, "kv": kv.dtype},
        peaks,
        tuple(_figures(shape, timed, ops, peaks[-1]) for shape, timed in steps),
        tuple(_figures(shape, timed, ops, peaks[-1]) for shape, timed in attention),
        tuple(of_formats),
    )


def _measure_machine(backend: CpuBackend, show: Show) -> tuple[Peaks, ...]:
    """With one thread, and with all that are used."""
    threads = int(backend.facts["threads"])
    return tuple(measure_peaks(backend.level, count, _PEAKS_S, show) for count in sorted({1, threads}))


def _timed(runner: StepRunner, shape: Shape, show: Show) -> TimedStep:
    show(f"{shape.kind}, {shape.rows} rows, context {shape.context}")
    return runner.time(shape.load)


def count_work(model: LoadedModel, kv: KvSpec, activations: str, level: str) -> list[OpWork]:
    """Every op of a model, with what it has to do."""
    kinds = ActivationKinds(activations, level)
    names: dict[int, Arithmetic] = {
        KINDS["f32"]: "f32",
        KINDS["bf16"]: "bf16",
        KINDS["int8"]: "int8",
        BF16_AS_F32: "f32",
    }

    def arithmetic_of(weight: Weight) -> Arithmetic:
        return names[kinds.of(weight)]

    counter = WorkCounter(kv, arithmetic_of, attention_arithmetic(kv.dtype, level))
    record(model.spec, model.weights, counter)
    return counter.ops


def attention_arithmetic(kv_dtype: str, level: str) -> Arithmetic:
    """What K and V are multiplied as: themselves where the level can, else widened to f32."""
    if kv_dtype == "bf16" and level == "avx512_bf16":
        return "bf16"
    return "int8" if kv_dtype == "int8" else "f32"


def shapes(rows: Sequence[int], capacity: int, longest: int) -> Iterator[Shape]:
    """Decodes and chunks of so many rows; contexts are shorter where the pool or the model ends earlier."""
    for count in rows:
        yield Shape("decode", count, max(1, min(DECODE_CONTEXT, capacity // count // 32 * 32, longest)))
    for count in rows:
        if LEAST_PREFILL_ROWS <= count <= longest:
            yield Shape("prefill", count, count)


def attention_shapes(most_rows: int, capacity: int, longest: int) -> Iterator[Shape]:
    """What fits of the contexts that attention is measured at."""
    for count, context in DECODE_ATTENTION:
        if count <= most_rows and count * context <= capacity and context <= longest:
            yield Shape("decode", count, context)
    for count, context in PREFILL_ATTENTION:
        if count <= most_rows and context <= min(capacity, longest):
            yield Shape("prefill", count, context)


def _pool_tokens(kv: KvSpec, model: LoadedModel) -> int:
    room = int((memory_room().bytes - 2 * model.weights_bytes) * _POOL_SHARE)
    pages = max(1, min(room, _MOST_POOL_BYTES) // kv.page_bytes)
    return pages * kv.page_size


def _figures(shape: Shape, timed: TimedStep, ops: Sequence[OpWork], peaks: Peaks) -> StepFigures:
    """Times beside work: equal ops of all layers together."""
    groups: dict[str, list[OpWork]] = {}
    for op in ops:
        groups.setdefault(op.name, []).append(op)
    figures = []
    for name, equal in groups.items():
        seconds = sum(timed.ops.get((op.op, op.sampling), 0.0) for op in equal)
        work: Work = sum((op.of(shape.load) for op in equal), NOTHING)
        bound = peaks.bound(work)
        moved = work.memory_bytes + work.row_bytes
        figures.append(OpFigures(name, len(equal), seconds, moved, work.total_operations, bound.by, bound.seconds))
    return StepFigures(shape, timed.seconds, sum(op.bound_s for op in figures), tuple(figures))
