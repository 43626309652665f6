"""What many tests share. Models and data sets come through the catalogue, as users get them."""

from __future__ import annotations

import signal

import pytest

from octavo.formats.model_files import ModelFiles
from octavo.formats.resolve import resolve

# A shell without job control starts background commands with SIGINT ignored, nohup with SIGHUP, and every child would
# inherit that: tests that interrupt a program need what a terminal gives it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session")
def default_model() -> ModelFiles:
    """SmolLM2-135M-Instruct in Q4_1, fetched on first use."""
    return resolve("smollm2-135m-instruct")
