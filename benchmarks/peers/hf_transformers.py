"""transformers behind `sse_server`, in a process of its own: what a script with `generate` reaches."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from peers.engine import PORT, Engine, Launch, Need, script
from peers.environment import Environment

ENVIRONMENT = Environment("transformers", ("transformers", "torch==2.13.0"))


@dataclass
class Transformers(Engine):
    """Loads the Hugging Face folder that `weights` makes, in bf16."""

    weights: Callable[[], Path] = Path
    _folder: Path = Path()

    def prepare(self) -> None:
        ENVIRONMENT.ensure()
        self._folder = self.weights()
        self.facts = {"versions": ENVIRONMENT.versions(), "environment_mb": round(ENVIRONMENT.megabytes(), 1)}

    def scored_weights(self) -> Path:
        return self._folder

    def launch(self, need: Need) -> Launch:
        threads = str(len(os.sched_getaffinity(0)))
        command = (str(ENVIRONMENT.python), script("transformers_server.py"), str(self._folder), PORT)
        return Launch((*command, str(need.in_flight), threads), (("HF_HUB_OFFLINE", "1"),))
