"""Megabytes of site-packages that `pip install .` makes, without any model.

    python benchmarks/env_size.py [VENV] [--limit 200]

Without VENV a fresh virtual environment is made in a temporary folder and removed again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = 8


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("venv", nargs="?", type=Path)
    parser.add_argument("--limit", type=float, default=200.0, help="MB; above it the exit status is 1 (default: 200)")
    arguments = parser.parse_args()
    if arguments.venv is not None:
        return report(arguments.venv, arguments.limit)
    with tempfile.TemporaryDirectory() as scratch:
        venv.create(scratch, with_pip=True)
        subprocess.run([f"{scratch}/bin/pip", "install", "-q", str(ROOT)], check=True)
        return report(Path(scratch), arguments.limit)


def report(environment: Path, limit: float) -> int:
    """Print the sum and the largest parts; 1 if the sum is above the limit."""
    (packages,) = environment.glob("lib/python3*/site-packages")
    parts = {part.name: megabytes(part) for part in packages.iterdir()}
    total = sum(parts.values())
    print(f"site-packages: {total:.1f} MB (limit {limit:g} MB)")
    for name, size in sorted(parts.items(), key=lambda part: -part[1])[:SHOWN]:
        print(f"{size:8.1f} MB  {name}")
    return int(total > limit)


def megabytes(path: Path) -> float:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink()) / 1e6


if __name__ == "__main__":
    sys.exit(main())
