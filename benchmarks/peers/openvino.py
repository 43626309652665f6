"""OpenVINO GenAI's continuous batching pipeline behind `sse_server`, in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers.engine import PORT, Engine, Launch, Need, script
from peers.environment import Environment

ENVIRONMENT = Environment("openvino-genai", ("openvino-genai",))

# Its default is 256 tokens a step; a lone long prompt is 12 % faster in one piece.
BATCHED_TOKENS, BATCHED_TOKENS_PREFILL = 256, 2048
CACHE_GIB = 2


@dataclass
class OpenVino(Engine):
    """Reads the GGUF file that `weights` makes."""

    weights: Callable[[], Path] = Path
    _model: Path = Path()

    def prepare(self) -> None:
        ENVIRONMENT.ensure()
        self._model = self.weights()
        self.facts = {"versions": ENVIRONMENT.versions(), "environment_mb": round(ENVIRONMENT.megabytes(), 1)}

    def scored_weights(self) -> Path:
        return self._model

    def launch(self, need: Need) -> Launch:
        batched = BATCHED_TOKENS_PREFILL if need.prefill_only else BATCHED_TOKENS
        command = (str(ENVIRONMENT.python), script("openvino_server.py"), str(self._model), PORT)
        return Launch((*command, str(batched), str(int(need.shared_prefix)), str(CACHE_GIB)))
