"""What the side-by-side runner knows of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from servers import Server, free_port


@dataclass(frozen=True)
class Need:
    """What a workload asks of a server, for engines that must be told before they start.

    in_flight: most requests at once. sequence_tokens: longest prompt and answer together. shared_prefix: prompts begin
    alike. prefill_only: nothing but prompts counts.
    """

    in_flight: int
    sequence_tokens: int
    shared_prefix: bool = False
    prefill_only: bool = False


@dataclass(frozen=True)
class Launch:
    """How a server is started. `PORT` in the command stands for its port. Equal launches can share one server."""

    command: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    ready_path: str = "/health"


PORT = "{port}"


@dataclass
class Engine(ABC):
    """One engine with one set of weights.

    label: for tables. settings: one sentence on how it is run. factor: ratios to it are divided by this (above 1 for a
    build that is known to be slower than the engine can be). slow_start: one start serves all workloads that it can.
    only: the workloads that it is measured on; empty for all. facts: versions and the like, filled by `prepare`.
    """

    name: str
    label: str
    settings: str
    factor: float = 1.0
    slow_start: bool = False
    only: tuple[str, ...] = ()
    ready_timeout_s: float = 180.0
    facts: dict[str, object] = field(default_factory=dict)

    @abstractmethod
    def prepare(self) -> None:
        """Install, build and convert what is missing, and fill `facts`. Raises PeerError."""

    @abstractmethod
    def launch(self, need: Need) -> Launch:
        """Its best settings for that need."""

    def scored_weights(self) -> Path | None:
        """A model that Octavo reads with the weights it computes with, for their perplexity; None: the shipped file."""
        return None

    def server(self, launch: Launch) -> Server:
        """The server of `launch` on a free port of the loopback interface, not yet started."""
        port = free_port()
        command = [part.replace(PORT, str(port)) for part in launch.command]
        return Server(
            self.label,
            command,
            port,
            launch.ready_path,
            environment=dict(launch.environment),
            ready_timeout_s=self.ready_timeout_s,
        )


def script(name: str) -> str:
    """Path of a script that runs inside a peer's environment, where nothing of this project can be imported."""
    return str(Path(__file__).parent / "inside" / name)
