"""Mapping a model file into memory, and telling what a file is that isn't one."""

from __future__ import annotations

import mmap
import os
import stat
from pathlib import Path

from octavo.formats.errors import ModelFileError


def map_file(path: Path) -> mmap.mmap:
    """The whole file, read-only. Raises ModelFileError if it can't be opened, or can't be a model."""
    try:
        with path.open("rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ModelFileError(path, "is not a regular file")
            head = file.read(64)
            problem = _not_a_model(head)
            if problem:
                raise ModelFileError(path, problem)
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise ModelFileError(path, f"can't be opened: {error.strerror or error}") from error


def _not_a_model(head: bytes) -> str:
    """What a file that begins like this is, if it is one of the things that are often mistaken for models."""
    if not head:
        return "is empty; the download was probably cut off"
    if head.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model itself; fetch it with git lfs pull"
    if head.lstrip()[:9].lower().startswith((b"<!doctype", b"<html", b"<?xml")):
        return "is a web page, not a model; the download address was probably wrong"
    return ""


def drop_pages(mapped: mmap.mmap, offset: int, nbytes: int) -> None:
    """Tell the kernel that these bytes are not needed soon. Views stay valid: pages are read again when touched."""
    if not nbytes:  # at the file's end, where there is no page to name
        return
    start = offset - offset % mmap.PAGESIZE
    mapped.madvise(mmap.MADV_DONTNEED, start, offset + nbytes - start)
