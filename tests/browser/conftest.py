"""A headless Chromium that talks to this machine alone."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Route, expect, sync_playwright

from tests.browser.viewing import View
from tests.gate.patience import PATIENCE

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium; without one, these tests are skipped."""
    for program in PROGRAMS:
        if path := shutil.which(program):
            return path
    pytest.skip(f"no browser: none of {', '.join(PROGRAMS)} is installed")


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """One browser for the tests of a file."""
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the pictures go: SQLQUEUE_SCREENSHOTS, or a temporary directory."""
    directory = Path(os.environ.get("SQLQUEUE_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@pytest.fixture
def tab(browser: Browser, screenshots: Path) -> Callable[[], AbstractContextManager[View]]:
    """Opens a tab of a browser that nobody has used yet. At its end, nothing may have gone wrong that a user would see."""

    @contextmanager
    def opened() -> Iterator[View]:
        with browser.new_context(viewport={"width": 1280, "height": 760}, timezone_id="UTC", locale="en-US") as context:
            context.route("**/*", _loopback_alone)
            context.set_default_timeout(PATIENCE * 1000)
            view = View(context.new_page(), screenshots)
            yield view
            view.check()

    return opened


def _loopback_alone(route: Route) -> None:
    host = urlsplit(route.request.url).hostname
    if host in (None, "127.0.0.1"):
        route.continue_()
    else:
        route.abort()
