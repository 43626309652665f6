"""A roofline as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.backends.cpu.peaks import Peaks
from octavo.bench.roofline import OpFigures, Roofline, StepFigures
from octavo.bench.roofline_formats import WIDTH, FormatFigures


def text(roofline: Roofline) -> str:
    """The machine, a table for each step, a line for each further context of attention, and one for each format."""
    return "\n".join(_lines(roofline))


def _lines(roofline: Roofline) -> Iterator[str]:
    yield ", ".join([roofline.model, *(f"{name} {value}" for name, value in roofline.facts.items())])
    yield from ("", f"{'the machine':<24}" + "".join(f"{_threads(peaks):>14}" for peaks in roofline.peaks))
    yield _peak_line("memory read GB/s", [peaks.memory_bytes_per_s for peaks in roofline.peaks])
    yield _peak_line("cache read GB/s", [peaks.cache_bytes_per_s for peaks in roofline.peaks])
    for kind in roofline.peaks[-1].operations_per_s:
        yield _peak_line(f"{kind} GOP/s", [peaks.operations_per_s[kind] for peaks in roofline.peaks])
    for step in roofline.steps:
        yield ""
        yield from _step(step)
    if roofline.attention:
        yield from ("", _header("attention at other contexts"))
    for step in roofline.attention:
        for op in step.ops:
            if op.name.startswith("attention"):
                yield _op(op, f"{step.shape.kind} {step.shape.rows} rows, context {step.shape.context}", step.seconds)
    if roofline.formats:
        yield ""
        yield from _formats(roofline.formats)
    if not roofline.complete:
        yield from ("", "INTERRUPTED: what was not measured is missing")


def _threads(peaks: Peaks) -> str:
    return f"{peaks.threads} thread" + ("s" if peaks.threads > 1 else "")


def _peak_line(name: str, rates: list[float]) -> str:
    return f"{name:<24}" + "".join(f"{rate * 1e-9:>14.1f}" if rate else f"{'-':>14}" for rate in rates)


def _step(step: StepFigures) -> Iterator[str]:
    shape, tokens_per_s = step.shape, step.shape.rows / step.seconds
    yield _header(f"{shape.kind} of {shape.rows} rows, context {shape.context}")
    for op in step.ops:
        yield _op(op, op.name, step.seconds)
    inside = sum(op.seconds for op in step.ops)
    share = step.bound_s / step.seconds
    yield f"{'between the ops':<44}{'':>4}{(step.seconds - inside) * 1e6:>11.0f}{1 - inside / step.seconds:>7.1%}"
    yield f"{'the step':<44}{'':>4}{step.seconds * 1e6:>11.0f}{tokens_per_s:>13.0f} tokens/s{share:>19.0%}"


def _formats(formats: tuple[FormatFigures, ...]) -> Iterator[str]:
    counts = [figures.rows for figures in formats[0].rows]
    columns = [f"{unit}, {count}" for count in counts for unit in ("GB/s", "GOP/s")]
    shape = f"matrices of {WIDTH}x{WIDTH}, by rows"
    yield f"{shape:<34}{'bits':>6}" + "".join(f"{column:>12}" for column in columns)
    for one in formats:
        rates = [rate for at in one.rows for rate in (at.bytes_per_s, at.operations_per_s)]
        yield f"{one.format:<34}{one.bits:>6.2f}" + "".join(f"{rate * 1e-9:>12.1f}" for rate in rates)


def _header(what: str) -> str:
    return f"{what:<44}{'n':>4}{'us':>11}{'time':>7}{'GB/s':>8}{'GOP/s':>8}{'limit':>8}{'of it':>10}"


def _op(op: OpFigures, name: str, step_s: float) -> str:
    if not op.seconds:
        return f"{name:<44}{op.count:>4}{'-':>11}"
    bytes_per_s, operations_per_s = op.bytes / op.seconds, op.operations / op.seconds
    return (
        f"{name:<44}{op.count:>4}{op.seconds * 1e6:>11.0f}{op.seconds / step_s:>7.1%}"
        f"{bytes_per_s * 1e-9:>8.1f}{operations_per_s * 1e-9:>8.1f}{op.bound:>8}{op.share:>10.0%}"
    )
