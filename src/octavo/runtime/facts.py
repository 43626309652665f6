"""What an engine was built from and with: sizes for clients, and the fingerprint that scopes promise 4."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from octavo import __version__
from octavo.models.defaults import SamplingDefaults


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """fingerprint: equal ones give equal tokens for equal requests. texts: for logs and `octavo doctor`.

    kv_bytes_per_token: in all layers. kv_groups: a token takes a slot of a page in each.
    """

    vocab: int
    eos_ids: tuple[int, ...]
    defaults: SamplingDefaults
    max_model_len: int
    num_pages: int
    page_size: int
    kv_bytes_per_token: int
    kv_dtype: str
    fingerprint: str
    kv_groups: int = 1
    texts: dict[str, str] = field(default_factory=dict)


def build_identity() -> str:
    """Octavo's version and a hash of its compiled module: two builds of one version may round differently."""
    compiled = find_spec("octavo._native")
    if compiled is None or compiled.origin is None:
        return __version__
    return f"{__version__} {hashlib.blake2b(Path(compiled.origin).read_bytes(), digest_size=8).hexdigest()}"


def fingerprint(build: str, weights_identity: str, kv_dtype: str, backend: dict[str, str]) -> str:
    """`fp_` and 10 hex digits over everything a request's logits depend on besides the request.

    backend: its facts; the number of threads is left out, because logits don't depend on it.
    """
    parts = [build, weights_identity, kv_dtype]
    parts += [f"{name}={value}" for name, value in sorted(backend.items()) if name != "threads"]
    return "fp_" + hashlib.blake2b("\0".join(parts).encode(), digest_size=5).hexdigest()
