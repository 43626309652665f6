"""One way from what a user writes to files on disk: local path, then catalogue name, then hub id."""

from __future__ import annotations

from pathlib import Path

from octavo.formats.catalogue import CATALOGUE, cache_folder, find
from octavo.formats.errors import ModelNotFoundError
from octavo.formats.gguf_split import whole_name
from octavo.formats.hub import fetch, is_hub_id
from octavo.formats.model_files import ModelFiles
from octavo.formats.pull import Progress, pull


def resolve(model: str, progress: Progress | None = None) -> ModelFiles:
    """A model's files, fetched first if they have to be.

    model: a GGUF file or a folder with safetensors; or a catalogue name; or a hub id ("org/name", "org/name:Q8_0" or
    "org/name/file.gguf"). Raises ModelNotFoundError with one sentence on what was tried.
    """
    if not model.strip():
        raise ModelNotFoundError("the model's name is empty; name a GGUF file, a folder, a catalogue name or a hub id")
    path = Path(model).expanduser()
    if path.exists():
        return _local(path)
    if _is_meant_as_path(model):
        raise ModelNotFoundError(f"There is no file {model} (looked for {path.absolute()}); check the path")
    entry = find(model, "gguf")
    if entry is not None:
        return ModelFiles("gguf", pull(entry, cache_folder(), progress), entry.name)
    if comes_from_hub(model):
        return fetch(model)
    raise ModelNotFoundError(f"{_unknown(model, 'gguf')}, nor does it look like a hub id (org/name)")


def check_name(model: str) -> None:
    """Raise ModelNotFoundError for a name that `resolve` would refuse without having fetched anything."""
    if find(model, "gguf") is None and not comes_from_hub(model):
        resolve(model)


def public_name(model: str) -> str:
    """What clients call the model: of a path the last part, without extension and number of a part; else the name."""
    path = Path(model).expanduser()
    if not path.exists():
        return model
    return path.resolve().name if path.is_dir() else whole_name(path)


def comes_from_hub(model: str) -> bool:
    """Whether `resolve` would ask the hub: the name is no path here, not in the catalogue, and looks like a hub id."""
    here = Path(model).expanduser().exists() or find(model, "gguf") is not None
    return not here and not _is_meant_as_path(model) and is_hub_id(model)


def resolve_dataset(name: str, progress: Progress | None = None) -> Path:
    """A data set's file: an existing path, or a catalogue name such as "sharegpt". Raises ModelNotFoundError."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    entry = find(name, "dataset")
    if entry is None:
        raise ModelNotFoundError(_unknown(name, "dataset"))
    return pull(entry, cache_folder(), progress)


def _is_meant_as_path(model: str) -> bool:
    """Written like a path, so that a typing mistake in it is not looked up on the hub.

    "org/name/file.gguf" is a hub id unless there is a folder "org" here.
    """
    if model.startswith((".", "/", "~")):
        return True
    parts = model.split("/")
    if not model.lower().endswith((".gguf", ".safetensors")):
        return False
    return len(parts) < 3 or Path(parts[0]).is_dir()


def _local(path: Path) -> ModelFiles:
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelNotFoundError(f"{path} is a folder without config.json; name a GGUF file or a model's folder")
        return ModelFiles("safetensors", path, public_name(str(path)))
    if path.suffix == ".safetensors":
        raise ModelNotFoundError(f"{path} is one file of a model; name the folder that holds it and config.json")
    return ModelFiles("gguf", path, public_name(str(path)))


def _unknown(name: str, kind: str) -> str:
    known = ", ".join(entry.name for entry in CATALOGUE if entry.kind == kind)
    return f"{name!r} is neither a path here nor a name in the catalogue ({known})"
