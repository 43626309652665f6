"""Octavo: an LLM serving engine with a paged KV cache and iteration-level batching."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.engine.params import SamplingParams as SamplingParams
    from octavo.llm import LLM as LLM

__version__ = "0.1.0"
__all__ = ["LLM", "SamplingParams", "__version__"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> Any:
    """LLM and SamplingParams are imported on first use: `import octavo` alone stays under 100 ms."""
    if name == "LLM":
        from octavo.llm import LLM

        return LLM
    if name == "SamplingParams":
        from octavo.engine.params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
