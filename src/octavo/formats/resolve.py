"""One way from what a user writes to files on disk: local path, then catalogue name, then hub id."""

from __future__ import annotations

from pathlib import Path

from octavo.formats.catalogue import CATALOGUE, cache_folder, find
from octavo.formats.errors import ModelNotFoundError
from octavo.formats.hub import fetch, is_hub_id
from octavo.formats.model_files import ModelFiles
from octavo.formats.pull import Progress, pull


def resolve(model: str, progress: Progress | None = None) -> ModelFiles:
    """A model's files, fetched first if they have to be.

    model: a GGUF file or a folder with safetensors; or a catalogue name; or a hub id ("org/name", or
    "org/name/file.gguf"). Raises ModelNotFoundError with one sentence on what was tried.
    """
    path = Path(model).expanduser()
    if path.exists():
        return _local(path)
    entry = find(model, "gguf")
    if entry is not None:
        return ModelFiles("gguf", pull(entry, cache_folder(), progress), entry.name)
    if is_hub_id(model):
        return fetch(model)
    raise ModelNotFoundError(f"{_unknown(model, 'gguf')}, nor does it look like a hub id (org/name)")


def resolve_dataset(name: str, progress: Progress | None = None) -> Path:
    """A data set's file: an existing path, or a catalogue name such as "sharegpt". Raises ModelNotFoundError."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    entry = find(name, "dataset")
    if entry is None:
        raise ModelNotFoundError(_unknown(name, "dataset"))
    return pull(entry, cache_folder(), progress)


def _local(path: Path) -> ModelFiles:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{path} is a folder without config.json; name a GGUF file or a model's folder")
        return ModelFiles("safetensors", path, path.resolve().name)
    return ModelFiles("gguf", path, path.stem)


def _unknown(name: str, kind: str) -> str:
    known = ", ".join(entry.name for entry in CATALOGUE if entry.kind == kind)
    return f"{name!r} is neither a path here nor a name in the catalogue ({known})"
