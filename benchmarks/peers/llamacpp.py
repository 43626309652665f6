"""llama.cpp's server: from the `xllamacpp` wheel, an executable, or one built here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers.engine import PORT, Engine, Launch, Need, script
from peers.environment import Environment, folder_megabytes
from peers.errors import PeerError

# The wheel is built for AVX2 only; the same source with native flags was measured 1.4 times faster with AVX-512.
WHEEL_FACTOR = 1.4
WHEEL = Environment("xllamacpp", ("xllamacpp",))


@dataclass
class LlamaCpp(Engine):
    """Serves the GGUF file that `model` makes; executable None: the wheel."""

    model: Callable[[], Path] = Path
    executable: Path | None = None
    _file: Path = Path()

    def prepare(self) -> None:
        self._file = self.model()
        if self.executable is None:
            WHEEL.ensure()
            self.factor = WHEEL_FACTOR
            self.facts = {"versions": WHEEL.versions(), "environment_mb": round(WHEEL.megabytes(), 1)}
        else:
            self.facts = {
                "versions": {"llama-server": _version(self.executable)},
                "environment_mb": round(folder_megabytes(self.executable), 1),
            }

    def scored_weights(self) -> Path:
        return self._file

    def launch(self, need: Need) -> Launch:
        """Flash attention on, one slot for each request in flight, no unified KV: its fastest settings on a CPU."""
        slots, threads = need.in_flight, str(len(os.sched_getaffinity(0)))
        context = str(slots * -(-need.sequence_tokens // 256) * 256)  # llama.cpp rounds a slot's context up to 256
        if self.executable is None:
            wheel = (str(WHEEL.python), script("xllamacpp_server.py"), str(self._file), PORT)
            return Launch((*wheel, str(slots), context, threads))
        command = (str(self.executable), "-m", str(self._file), "--host", "127.0.0.1", "--port", PORT)
        sizes = ("-t", threads, "-tb", threads, "-np", str(slots), "-c", context)
        return Launch((*command, *sizes, "-fa", "on", "--no-kv-unified"))


def _version(executable: Path) -> str:
    """What the executable says of itself. Raises PeerError if it does not run."""
    try:
        answer = subprocess.run([executable, "--version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise PeerError(
            f"{executable} is no llama-server that runs here ({error}); give --llama-server the path of one, or build "
            "one with `python benchmarks/peers/llamacpp_build.py`."
        ) from error
    lines = [line for line in (answer.stdout + answer.stderr).splitlines() if line.startswith("version")]
    return lines[0].removeprefix("version: ") if lines else "unknown"
