"""Octavo itself, as this environment has it."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import octavo
from peers.engine import PORT, Engine, Launch, Need
from peers.environment import folder_megabytes, installed_megabytes


@dataclass
class Octavo(Engine):
    """`octavo serve` with its defaults: it needs no settings for a workload. weights: the model's file."""

    model: str = ""
    weights: Callable[[], Path] = Path
    flags: tuple[str, ...] = ()

    def prepare(self) -> None:
        package = Path(octavo.__file__).parent
        site = installed_megabytes("octavo")
        if package.parent.name == "src":  # an editable installation records no files of the package itself
            site += folder_megabytes(package)
        self.facts = {
            "versions": {"octavo": importlib.metadata.version("octavo"), "commit": _commit()},
            "environment_mb": round(site, 1),
            "weights_mib": round(self.weights().stat().st_size / (1 << 20), 1),
        }

    def launch(self, need: Need) -> Launch:
        command = [sys.executable, "-m", "octavo.cli.main", "serve", "--model", self.model, "--port", PORT]
        return Launch((*command, "--log-level", "warning", *self.flags))


def _commit() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    return described.stdout.strip() or "unknown"
