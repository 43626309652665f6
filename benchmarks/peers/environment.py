"""A peer's own virtual environment, made once from packages and kept in Octavo's cache folder."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.formats.catalogue import cache_folder
from peers.errors import PeerError

# Asks a Python for the versions of the distributions in argv.
_VERSIONS = """
import importlib.metadata, json, sys
print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))
"""


def peers_folder() -> Path:
    """Where environments, built servers and converted weights are kept; made if it is not there."""
    folder = cache_folder() / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@dataclass(frozen=True)
class Environment:
    """`packages` (and what they need) in a virtual environment called `name`; `without` is removed again.

    The environment counts as complete once its list of packages has been written into it, so an installation that was
    cut short, and one for another list, is made anew.
    """

    name: str
    packages: tuple[str, ...]
    without: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return peers_folder() / self.name

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def site_packages(self) -> Path:
        (folder,) = self.folder.glob("lib/python3*/site-packages")
        return folder

    def ensure(self) -> None:
        """Make it if it is not there. Raises PeerError."""
        mark = self.folder / "octavo-peer.json"
        wanted = json.dumps({"packages": self.packages, "without": self.without, "python": sys.version_info[:2]})
        if mark.exists() and mark.read_text() == wanted:
            return
        print(f"installing {', '.join(self.packages)} into {self.folder} ...", file=sys.stderr, flush=True)
        try:
            venv.create(self.folder, with_pip=True, clear=True)
            self._pip("install", *self.packages)
            if self.without:
                self._pip("uninstall", "--yes", *self.without)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = _last_error(error)
            raise PeerError(
                f"{self.name} can't be installed from {', '.join(self.packages)}: {reason}; leave it out with --peers, "
                "or see to it that pip can install these packages."
            ) from error
        mark.write_text(wanted)

    def versions(self) -> dict[str, str]:
        """Version of each package that was asked for."""
        names = [re.split(r"[<>=~! \[]", package)[0] for package in self.packages]
        answer = subprocess.run([self.python, "-c", _VERSIONS, *names], capture_output=True, check=True, text=True)
        versions: dict[str, str] = json.loads(answer.stdout)
        return versions

    def megabytes(self) -> float:
        """Size of site-packages."""
        return folder_megabytes(self.site_packages)

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def _pip(self, *arguments: str) -> None:
        subprocess.run(
            [self.python, "-m", "pip", "-q", "--disable-pip-version-check", *arguments],
            check=True,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )


def folder_megabytes(path: Path) -> float:
    """10**6 bytes of all files below `path` (or of the file `path`); links count nothing."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink()) / 1e6


def installed_megabytes(distribution: str) -> float:
    """10**6 bytes that `distribution`, pip and all it needs take in this Python's environment, extras left out."""
    found: dict[str, float] = {}
    _measure(distribution, found)
    _measure("pip", found)
    return sum(found.values())


def _measure(name: str, found: dict[str, float]) -> None:
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in found:
        return
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return  # a requirement for another platform
    paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    found[key] = sum(path.stat().st_size for path in paths if path.is_file()) / 1e6
    for requirement in distribution.requires or ():
        if "extra ==" not in requirement:
            _measure(re.split(r"[<>=~! \[;(]", requirement)[0], found)


def _last_error(error: OSError | subprocess.CalledProcessError) -> str:
    lines: Sequence[str] = (getattr(error, "stderr", None) or str(error)).splitlines()
    errors = [line.strip() for line in lines if line.strip().lower().startswith("error")]
    return (errors or [line.strip() for line in lines if line.strip()] or [type(error).__name__])[-1].rstrip(".")[:300]
