"""The HTML page: whole in itself, and readable in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from tests.bench.policies.test_compare import outcome, work

from octavo.bench.policies.page import page, write_page
from octavo.bench.policies.report import Comparison
from octavo.bench.policies.run import Combination

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    chosen = [Combination("contiguous", "static"), Combination("paged", "continuous")]
    return Comparison(
        {"model": "<b>&model</b>", "kv_tokens": 8192},
        [[outcome(one, work(24)) for one in chosen]],
        page_sizes={4: 0.01, 64: 0.2},
        complete=True,
    )


def test_the_page_refers_to_nothing_outside(comparison: Comparison) -> None:
    text = page(comparison)
    assert "<script" not in text
    assert not re.search(r"""(?:src|href)=["'](?!#)""", text)
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "<b>&model" not in text
    assert text.count("<svg") == 2 + 1 + 1 + 2 + 2  # memory, page sizes, concurrency, lanes, latencies


def test_an_incomplete_page_says_so(comparison: Comparison) -> None:
    comparison.complete = False
    assert "interrupted" in page(comparison)
    comparison.complete = True


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_a_browser_shows_every_plot(comparison: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_page(path, comparison)
    picture = tmp_path / "shot.png"
    common = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shot = [*common, "--window-size=1100,3000", f"--screenshot={picture}", path.as_uri()]
    subprocess.run(shot, check=True, capture_output=True, timeout=60)
    assert picture.stat().st_size > 50_000
    dumped = subprocess.run([*common, "--dump-dom", path.as_uri()], check=True, capture_output=True, timeout=60)
    dom = dumped.stdout.decode()
    assert dom.count("<svg") == page(comparison).count("<svg")
    assert "% of KV memory" in dom
