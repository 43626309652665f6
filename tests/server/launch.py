"""The real server in front of the fake engine: `python launch.py ENGINE_JSON SERVER_JSON [fake engine options]`."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from octavo.config import EngineConfig, ServerConfig
from octavo.server.main import serve
from octavo.server.supervisor import Patience

#: The defaults in tenths: tests are in a hurry.
PATIENCE = Patience(
    silence_stuck_s=1.0,
    silence_dead_s=2.5,
    step_dead_s=3.0,
    check_every_s=0.05,
    first_backoff_s=0.05,
    max_backoff_s=0.2,
    deaths_in_a_row=3,
    healthy_after_s=60.0,
)


def main() -> int:
    engine = msgspec.json.decode(sys.argv[1], type=EngineConfig)
    server = msgspec.json.decode(sys.argv[2], type=ServerConfig)
    worker = [sys.executable, str(Path(__file__).parent / "fake_engine.py"), *sys.argv[3:]]
    return serve(engine, server, worker=worker, patience=PATIENCE)


if __name__ == "__main__":
    sys.exit(main())
