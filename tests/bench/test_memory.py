"""Resident memory counts every process that a server has started."""

from __future__ import annotations

import subprocess
import sys

from sidebyside import memory

# A child in a session of its own holds 64 MiB; it says so, then waits for the end of its input.
CHILD = "data = bytearray(b'x' * (64 << 20)); print('held', flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}], start_new_session=True)"


def test_a_child_in_a_session_of_its_own_counts() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"held\n"
        assert len(memory.family(parent.pid)) == 2
        assert 64 < memory.resident_mib(parent.pid) < 120
        memory.reset_peaks(parent.pid)
        assert 64 < memory.peak_mib(parent.pid) < 120
        parent.communicate(b"\n")
