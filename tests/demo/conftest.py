"""The demo as a call in this process."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from definitions import demo, main_job, ui
from tests.demo.running import Refusal, settings


@pytest.fixture
def said_by_a_call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusal]:
    """The modules that read their settings when they are imported were imported before."""
    assert main_job
    before = {sign: signal.getsignal(sign) for sign in (signal.SIGINT, signal.SIGTERM)}
    for name in ("SQLQUEUE_URL", "SQLQUEUE_SCHEMA"):
        monkeypatch.delenv(name, raising=False)

    def called(home: Path, module: str = "definitions.demo", **more: str) -> str:
        for name, value in settings(home, **more).items():
            monkeypatch.setenv(name, value)
        assert {"definitions.demo": demo, "definitions.ui": ui}[module].main() == 1
        said = capsys.readouterr()
        return said.out + said.err

    yield called
    for sign, handler in before.items():
        signal.signal(sign, handler)
