"""What a process that will live long does for itself: at its start, and once that is over."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os


def settle() -> None:
    """What the start has built stays, so the collector need never look at it again; holes in the heap go back.

    A collection of all that a start builds takes 17 ms in the front process, in the middle of somebody's stream.
    """
    gc.collect()
    gc.freeze()
    with contextlib.suppress(AttributeError, OSError):  # malloc_trim is glibc's
        ctypes.CDLL(None).malloc_trim(0)


def wait_for_kernels() -> None:
    """This thread, and those that it starts, get a core when kernels offer one, at the latest when their slice ends.

    For whatever shares cores with them. Kernels offer a core between two pieces of work (csrc/pool.cpp); who takes it
    in the middle of one has all other cores wait. Linux wakes a SCHED_BATCH thread (sched(7)) without preempting any.
    """
    _change_policy("SCHED_OTHER", "SCHED_BATCH")


def wait_for_nobody() -> None:
    """Undoes what a process has inherited of `wait_for_kernels`."""
    _change_policy("SCHED_BATCH", "SCHED_OTHER")


def _change_policy(old: str, new: str) -> None:
    """A thread under another policy than `old` keeps it; so does one that may not change it."""
    with contextlib.suppress(AttributeError, OSError):  # not Linux, or forbidden
        if os.sched_getscheduler(0) == getattr(os, old):
            os.sched_setscheduler(0, getattr(os, new), os.sched_param(0))
