"""Models from the Hugging Face hub, through its own client and cache."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from octavo.formats.errors import ModelNotFoundError
from octavo.formats.gguf_split import part_of, part_paths
from octavo.formats.model_files import ModelFiles

# What a model needs besides its weights; never code.
_PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja"]
_TIMEOUT_S = 10.0
_HUB_ID = re.compile(r"([\w.-]+/[\w.-]+)(?:/([\w./-]+\.gguf)|:([\w.-]+))?")


def is_hub_id(model: str) -> bool:
    """Whether a name looks like "org/name", "org/name:Q8_0" or "org/name/file.gguf"."""
    return _HUB_ID.fullmatch(model) is not None and ".." not in model


def fetch(model: str) -> ModelFiles:
    """A hub model's files, downloaded unless they are in the hub client's cache.

    model: "org/name" (safetensors, or the only GGUF file there), "org/name:Q8_0" (the only GGUF file with that word in
    its name, as llama.cpp has it) or "org/name/file.gguf". Raises ModelNotFoundError.
    """
    match = _HUB_ID.fullmatch(model)
    assert match is not None, model
    repo, file, quantisation = match.groups()
    # Half a second to import, and only hub models need it.
    import huggingface_hub

    try:
        # Unlike a download, this does not try again and again when the hub can't be reached.
        siblings = huggingface_hub.HfApi().model_info(repo, timeout=_TIMEOUT_S).siblings
    except Exception as error:
        return _from_cache(model, error)
    names = [sibling.rfilename for sibling in siblings or []]
    try:
        if model == repo and any(name.endswith(".safetensors") for name in names):
            folder = Path(huggingface_hub.snapshot_download(repo, allow_patterns=_PATTERNS))
            return ModelFiles("safetensors", folder, repo)
        chosen = file or _only_gguf(repo, quantisation, names)
        paths = [Path(huggingface_hub.hf_hub_download(repo, name)) for name in _parts(chosen)]
        return ModelFiles("gguf", paths[0], model)
    except ModelNotFoundError:
        raise
    except Exception as error:
        raise _unreachable(model, error) from error


def _from_cache(model: str, error: Exception) -> ModelFiles:
    """What was downloaded before is still good when the hub can't be asked; `error` says why it can't."""
    import huggingface_hub

    match = _HUB_ID.fullmatch(model)
    assert match is not None, model
    repo, file, quantisation = match.groups()
    try:
        folder = Path(huggingface_hub.snapshot_download(repo, local_files_only=True))
    except Exception:
        raise _unreachable(model, error) from error
    if model == repo and any(folder.glob("*.safetensors")):
        return ModelFiles("safetensors", folder, repo)
    names = [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")]
    path = folder / (file or _only_gguf(repo, quantisation, names))
    if not path.exists():
        raise _unreachable(model, error) from error
    return ModelFiles("gguf", path, model)


def _unreachable(model: str, error: Exception) -> ModelNotFoundError:
    reason = " ".join(str(error).split())[:200].rstrip(".:") or type(error).__name__
    return ModelNotFoundError(
        f"{model} could not be fetched from the hub: {reason}. Check the name and the network (HF_ENDPOINT, HF_TOKEN), "
        "or name a local GGUF file or folder"
    )


def _parts(name: str) -> list[str]:
    """The file, or all the files of a split model whose first it is."""
    part = part_of(name)
    return [name] if part is None or part[0] != 1 else [path.as_posix() for path in part_paths(PurePosixPath(name))]


def _only_gguf(repo: str, quantisation: str | None, names: Sequence[str]) -> str:
    """The one GGUF file among `names`, or among those whose name has the word `quantisation`; case does not matter.

    Of a model split into several files, that is the first.
    """
    every = sorted(name for name in names if name.endswith(".gguf") and (part_of(name) or (1,))[0] == 1)
    if not every:
        found = "no GGUF files" if quantisation else "neither safetensors nor GGUF files"
        raise ModelNotFoundError(f"{repo} on the hub holds {found}")
    wanted = every
    if quantisation is not None:
        word = re.compile(rf"(?<![a-z0-9]){re.escape(quantisation)}(?![a-z0-9_])", re.IGNORECASE)
        wanted = [name for name in every if word.search(name)]
    if len(wanted) == 1:
        return wanted[0]
    shown = ", ".join((wanted or every)[:20])
    having = "" if quantisation is None else f" with {quantisation} in their names"
    raise ModelNotFoundError(
        f"{repo} on the hub holds {len(wanted) or 'no'} GGUF files{having}; name one as {repo}/FILE, "
        f"or by a word of its name, such as {repo}:Q8_0: {shown}"
    )
