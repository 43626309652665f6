"""Log lines on standard error: time, level, message."""

from __future__ import annotations

import logging
import sys


def configure_logging(level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%H:%M:%S"))
    root = logging.getLogger("octavo")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False
    uvicorn = logging.getLogger("uvicorn")
    uvicorn.handlers[:] = [handler]
    uvicorn.setLevel(logging.WARNING)
    uvicorn.propagate = False
