"""Files of results: written whole or not at all, and only ever into files."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write the file whole or not at all. Raises OSError.

    A link is followed, not replaced; devices and pipes are written to as they are.
    """
    target, content = path.resolve(), text.encode()
    if target.exists() and not target.is_file():
        target.write_bytes(content)
        return
    part = target.with_name(target.name + ".tmp")
    part.write_bytes(content)
    os.replace(part, target)
