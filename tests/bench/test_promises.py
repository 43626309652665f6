"""Promises that need the whole server and real conversations: each is a script in benchmarks/ with its limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kv_waste_is_at_most_two_percent_with_64_requests_in_flight() -> None:
    script = [sys.executable, str(BENCHMARKS / "waste.py"), "--limit", "0.02"]
    result = subprocess.run(script, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "64 requests in flight, 256 complete, 0 failed" in result.stdout
