"""Recording must never be what ends a server: a full disk ends the recording."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from tests.engine.driver import config, request

from octavo.runtime.record import RecordingScheduler


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="needs a device that is always full")
def test_a_full_disk_ends_the_recording_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        scheduler = RecordingScheduler(config(), Path("/dev/full"))
        scheduler.add(request(1, 20, 4))
        assert scheduler.schedule(0.0) is not None
    (line,) = caplog.messages
    assert "/dev/full" in line
    assert "No space left" in line
