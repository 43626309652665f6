"""Octavo: an LLM serving engine with a paged KV cache and iteration-level batching."""

from __future__ import annotations

__version__ = "0.1.0"
