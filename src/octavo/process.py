"""What a process that will live long does once its start is over."""

from __future__ import annotations

import contextlib
import ctypes
import gc


def settle() -> None:
    """What the start has built stays, so the collector need never look at it again; holes in the heap go back.

    A collection of all that a start builds takes 17 ms in the front process, in the middle of somebody's stream.
    """
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):  # malloc_trim is glibc's
        ctypes.CDLL(None).malloc_trim(0)
