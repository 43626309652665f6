"""Instructions that fixed kernels and one scheduler step take, against the counts recorded in this repository.

    python benchmarks/instruction_counts.py            # compare; exits with 1 if something takes 3 % more than recorded
    python benchmarks/instruction_counts.py --record   # after an intended change: write instruction_counts.json anew

Time moves with the machine, instructions don't, so this holds in a busy container. There are two counters, each with
counts of its own: callgrind (Debian's `valgrind`; it knows no AVX-512, so it counts the generic and avx2 levels), and
the processor's (perf_event_open; every level that this CPU has), where the system lets a process count itself. Shapes
and seeds are fixed, and one thread runs.

Counts belong to a compiler, a Python and (the scheduler's) a numpy: what was made with others than the recorded ones is
not compared, and a line says so.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import platform
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_suffix(".json")
TOLERANCE = 0.03
CHILD_LIMIT_S = 300
#: Equal in every run, so that sets and dicts have the same order, and no other thread.
FIXED_ENVIRONMENT = {"PYTHONHASHSEED": "0", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

Work = Callable[[], object]


# --------------------------------------------------------------------------------------------------------- the work


@dataclass(frozen=True)
class Case:
    name: str
    work: Work


def kernel_cases(level: str) -> Iterator[Case]:
    """Each op of the contract at a shape of the default model's, cut down, on rows from an embedding of their own."""
    import numpy as np

    from octavo.backends.cpu.backend import CpuBackend
    from octavo.backends.ops import AttentionOp, KvSpec, Norm, PlanLimits, Projection, SlotParams, Weight
    from octavo.backends.work import Chunk, StepLoad
    from octavo.bench.batches import batch_of
    from octavo.formats.blocks import quantize
    from octavo.formats.tensor import TensorType

    hidden, wide, vocab, heads, kv_heads, head_dim = 576, 768, 1024, 9, 3, 64
    default_kv = KvSpec(1, kv_heads, head_dim, 4, "bf16")
    limits = PlanLimits(max_tokens=64, max_seqs=32, max_blocks=128, num_pages=1024, vocab=vocab)
    backend = CpuBackend(1, level)

    def matrix(rows: int, columns: int, format_: TensorType) -> Weight:
        values = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns) % 97 / 48 - 1
        return Weight(quantize("w", values, format_))

    table = matrix(vocab, hidden, TensorType.Q8_0)
    # Of the formats, f32 costs the least to embed, where that would hide the op behind it.
    plain_table, wide_table = matrix(vocab, hidden, TensorType.F32), matrix(vocab, wide, TensorType.F32)
    ones = np.ones(hidden, np.float32)
    inv_freq = (1e4 ** (-np.arange(0, head_dim, 2) / head_dim)).astype(np.float32)
    attention = AttentionOp(0, heads, kv_heads, head_dim, 0.125, inv_freq)

    def case(
        name: str,
        load: StepLoad,
        record: Callable[[Any], object],
        params: SlotParams | None = None,
        kv: KvSpec = default_kv,
    ) -> Case:
        builder = backend.builder(limits, kv)
        record(builder)
        plan = builder.finish()
        for slot in range(load.outputs):
            assert params is not None
            plan.set_slot(slot, params, np.array([1], np.int32), 1)
        batch = batch_of(load, kv.page_size, np.arange(limits.num_pages, dtype=np.int32), vocab)
        return Case(f"{name}, {level}", lambda: plan.run(batch))

    def rows(count: int, outputs: int = 0) -> StepLoad:
        return StepLoad((Chunk(1, 1),) * count, outputs)

    for format_ in (TensorType.Q4_1, TensorType.Q4_0, TensorType.Q8_0, TensorType.BF16, TensorType.F32):
        weight = matrix(512, hidden, format_)
        for count in (1, 16):
            yield case(
                f"linear {format_.name} 512x{hidden}, rows {count}",
                rows(count),
                lambda b, w=weight: b.linear(b.embed(table, 1.0), [Projection(w)]),
            )
    yield case(f"norm {hidden}, rows 32", rows(32), lambda b: b.norm(b.embed(plain_table, 1.0), Norm(ones, 1e-5)))
    yield case(
        f"silu {wide}, rows 32",
        rows(32),
        lambda b: b.gated(b.embed(wide_table, 1.0), b.embed(wide_table, 2.0), "silu"),
    )

    def attend(b: Any, op: AttentionOp = attention, stored: int = kv_heads * head_dim) -> None:
        q = b.embed(table, 1.0)
        k, v = b.linear(q, [Projection(matrix(stored, hidden, TensorType.Q4_1)) for _ in range(2)])
        b.rope_and_store(q, k, v, op)
        b.attention(q, op)
        b.attention(q, op)  # the last one of a plan is left out where no row draws a token

    decodes, chunk = StepLoad((Chunk(1, 500),) * 8, 0), StepLoad((Chunk(64, 500),), 0)
    yield case("attention, 8 decodes at 500", decodes, attend)
    yield case("attention, 64 tokens at 500", chunk, attend)
    for dtype in ("f16", "int8"):
        kv = replace(default_kv, dtype=dtype)
        yield case(f"attention over {dtype}, 8 decodes at 500", decodes, attend, kv=kv)
        yield case(f"attention over {dtype}, 64 tokens at 500", chunk, attend, kv=kv)
    wide = AttentionOp(0, 3, 1, 192, 0.125, inv_freq)  # three scales a head
    wide_kv = KvSpec(1, 1, 192, 4, "int8")
    for name, load in (("8 decodes", decodes), ("64 tokens", chunk)):
        yield case(
            f"attention over int8, heads of 192, {name} at 500", load, lambda b: attend(b, wide, 192), kv=wide_kv
        )

    def head(b: Any) -> None:
        b.head_and_sample(b.embed(table, 1.0), Norm(ones, 1e-5), table, 1.0, 0.0)

    yield case(f"head and greedy draw of {vocab}, rows 4", rows(4, 4), head, SlotParams(seed=1, temperature=0.0))
    drawn = SlotParams(seed=1, temperature=0.8, top_k=40, top_p=0.9)
    yield case(f"head and draw of {vocab} with top-k and top-p, rows 4", rows(4, 4), head, drawn)


def scheduler_case() -> Case:
    """Eight steps of 32 decodes, 100 sequences waiting."""
    import numpy as np

    from octavo.engine.params import SamplingParams
    from octavo.engine.request import Request
    from octavo.engine.scheduler import Scheduler, SchedulerConfig
    from octavo.engine.step import StepResult

    running, waiting, steps = 32, 100, 8
    config = SchedulerConfig(4096, running, 1024, 4, 20_000, frozenset({2}), prefix_key=bytes(32))
    scheduler = Scheduler(config)
    rng = np.random.default_rng(0)
    for i in range(running + waiting):
        prompt = rng.integers(3, 40_000, 100, dtype=np.int32)
        scheduler.add(Request(i, prompt, SamplingParams(max_tokens=2000), seed=i, arrival_s=0.0))

    def step() -> int:
        step = scheduler.schedule(0.0)
        assert step is not None
        rows = int(step.sample.sum())
        result = StepResult(step.step_id, np.full((rows, 1), 77, np.int32), np.ones(rows, np.int32), 0.01, 0.01)
        scheduler.apply(step, result, 0.0)
        return step.num_tokens_total

    while step() != running:
        pass
    return Case(f"scheduler, {steps} steps of {running} decodes", lambda: [step() for _ in range(steps)])


def cases() -> Iterator[Case]:
    from octavo import _native

    gc.disable()  # or it would run now here, now there
    for level in reversed(_native.supported_levels()):
        yield from kernel_cases(level)
    yield scheduler_case()


# ------------------------------------------------------------------------------------------------------- the counters


def marked(work: Work) -> None:
    """Run `work` between two calls of the C library's getsid: callgrind dumps its counts at each."""
    os.getsid(0)
    work()
    os.getsid(0)


class ProcessorCounter:
    """Instructions in user mode of this thread, by perf_event_open(2). Raises OSError where that is not allowed."""

    _HARDWARE, _INSTRUCTIONS = 0, 1
    _EXCLUDE_KERNEL_AND_HYPERVISOR = 0b11 << 5

    def __init__(self) -> None:
        number = {"x86_64": 298, "aarch64": 241}.get(platform.machine())
        if number is None:
            raise OSError("unknown machine")
        # struct perf_event_attr, its first version: type, size, config, period, sample_type, read_format, flags, ...
        fields = (self._HARDWARE, 64, self._INSTRUCTIONS, 0, 0, 0, self._EXCLUDE_KERNEL_AND_HYPERVISOR, 0, 0, 0)
        attributes = ctypes.create_string_buffer(struct.pack("=IIQQQQQIIQ", *fields), 64)
        self._descriptor = ctypes.CDLL(None, use_errno=True).syscall(number, attributes, 0, -1, -1, 0)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "perf_event_open")

    def read(self) -> int:
        count: int = struct.unpack("=Q", os.read(self._descriptor, 8))[0]
        return count


def count_in_callgrind() -> None:
    """The child under valgrind: a name a line, in the order of the dumps."""
    for case in cases():
        case.work()
        marked(case.work)
        print(case.name, flush=True)


def count_by_processor() -> None:
    """The child without valgrind: count and name a line."""
    counter = ProcessorCounter()
    for case in cases():
        case.work()
        before = counter.read()
        marked(case.work)
        print(counter.read() - before, case.name, flush=True)


# ---------------------------------------------------------------------------------------------------------- the parent


def run_child(mode: str, prefix: list[str]) -> list[str]:
    command = [*prefix, sys.executable, __file__, "--child", mode]
    done = subprocess.run(
        command, env={**os.environ, **FIXED_ENVIRONMENT}, capture_output=True, text=True, timeout=CHILD_LIMIT_S
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    return done.stdout.splitlines()


def callgrind() -> dict[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        options = ["--dump-before=getsid", f"--callgrind-out-file={out}", "-q"]
        names = run_child("callgrind", ["valgrind", "--tool=callgrind", *options])
        counts = {}
        for number, name in enumerate(names, 1):
            # Every second dump holds what came between a pair of marks.
            total = re.search(r"^totals: (\d+)", Path(f"{out}.{2 * number}").read_text(), re.MULTILINE)
            assert total is not None, name
            counts[name] = int(total[1])
        return counts


def processor() -> dict[str, int]:
    lines = (line.split(" ", 1) for line in run_child("processor", []))
    return {name: int(count) for count, name in lines}


def counters() -> Iterator[tuple[str, Callable[[], dict[str, int]]]]:
    """Those that work here; the others are named with the reason."""
    if shutil.which("valgrind"):
        yield "callgrind", callgrind
    else:
        print("callgrind: not counted, valgrind is not installed (Debian: apt-get install valgrind)")
    try:
        ProcessorCounter()
        yield "processor", processor
    except OSError as error:
        print(f"processor: not counted, the system does not allow it ({error}), so no AVX-512 level is")


def builders() -> dict[str, str]:
    """What counts depend on besides the source."""
    import numpy as np

    from octavo import _native

    compiler = re.search(rb"GCC: \([^)]*\) [\d.]+|clang version [\d.]+", Path(_native.__file__).read_bytes())
    return {
        "machine": platform.machine(),
        "compiler": compiler[0].decode() if compiler else "unknown",
        "python": f"{platform.python_version()} ({platform.python_compiler()})",
        "numpy": np.__version__,
    }


def comparable(name: str, builder: dict[str, str], recorded: dict[str, str]) -> bool:
    """Kernels don't depend on numpy; the scheduler doesn't depend on the kernels' compiler."""
    keys = ("python", "numpy") if name.startswith("scheduler") else ("machine", "compiler", "python")
    return all(builder[key] == recorded.get(key) for key in keys)


def compare(counter: str, counts: dict[str, int], recorded: dict[str, int]) -> list[str]:
    """What grew beyond the tolerance. Prints every count with its change."""
    grown = []
    for name, count in counts.items():
        if name not in recorded:
            print(f"{counter:<10}{count:>12} {'new':>8}  {name}")
            grown.append(f"{name}: no count is recorded ({counter})")
            continue
        change = count / recorded[name] - 1
        print(f"{counter:<10}{count:>12} {change:>+8.2%}  {name}")
        if change > TOLERANCE:
            grown.append(f"{name}: {recorded[name]} -> {count} instructions, {change:+.1%} ({counter})")
    return grown


def record() -> int:
    counts = {name: count() for name, count in counters()}
    RECORDED.write_text(json.dumps({"recorded_with": builders(), "counts": counts}, indent=1) + "\n")
    print(f"recorded {', '.join(f'{len(found)} counts by {name}' for name, found in counts.items())}")
    return 0


def check() -> int:
    """Compare what can be compared; 1 if something grew."""
    if not RECORDED.exists():
        print(f"skipped: no counts are recorded; run {sys.executable} {__file__} --record")
        return 0
    known: dict[str, Any] = json.loads(RECORDED.read_text())
    builder = builders()
    for key, value in builder.items():
        if known["recorded_with"].get(key) != value:
            print(f"{key} is {value}; the counts were recorded with {known['recorded_with'].get(key)}")
    grown = []
    for counter, count in counters():
        if counter not in known["counts"]:
            print(f"{counter}: skipped, no counts are recorded")
            continue
        counts = count()
        ours = {name: found for name, found in counts.items() if comparable(name, builder, known["recorded_with"])}
        if len(ours) < len(counts):
            print(f"{counter}: {len(counts) - len(ours)} of {len(counts)} counts skipped, made with something else")
        grown += compare(counter, ours, known["counts"][counter])
    for line in grown:
        print(f"MORE INSTRUCTIONS: {line}")
    if grown:
        print(f"The limit is {TOLERANCE:+.0%}. If it is meant: python benchmarks/instruction_counts.py --record")
    return 1 if grown else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true", help=f"write {RECORDED.name} instead of comparing")
    parser.add_argument("--child", choices=("callgrind", "processor"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        {"callgrind": count_in_callgrind, "processor": count_by_processor}[arguments.child]()
        return 0
    return record() if arguments.record else check()


if __name__ == "__main__":
    sys.exit(main())
