"""What a user does with a page, and what must never be on one."""

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.browser.served import PASSWORD

TROUBLE = re.compile(
    r"unexpected error|GraphQL error|failed to load|code location error|daemon is not running|page not found",
    re.IGNORECASE,
)
CLOCKS = re.compile(r"\b(\d+ seconds?|a few seconds|less than a minute) ago\b|\b\d+:\d\d\b")


class View:
    """A page that is looked at: every text that it showed at a `capture` is checked."""

    def __init__(self, page: Page, screenshots: Path) -> None:
        self.page = page
        self.screenshots = screenshots
        self._errors: list[str] = []
        page.on("pageerror", lambda error: self._errors.append(str(error)))

    def capture(self, name: str, *shown: str, height: int = 760) -> str:
        """Wait until the page shows these patterns and has come to rest, keep a picture of it, and give its text."""
        self.page.set_viewport_size({"width": 1280, "height": height})
        text = self._rest(*shown)
        self.page.screenshot(path=self.screenshots / f"{name}.png")
        self._judge(text)
        return text

    def plots(self) -> dict[str, bool]:
        """The headings of the plots on the page, and whether something is drawn below each."""
        return {
            title: bool(drawn)
            for title, drawn in self.page.evaluate(
                """() => [...document.querySelectorAll('canvas')].map(canvas => {
                     let box = canvas;
                     while (box.parentElement && !box.innerText.trim()) box = box.parentElement;
                     const pixels = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
                     return [box.innerText.trim(), pixels.some(value => value !== 0)];
                   })"""
            )
        }

    def opened(self, groups: dict[str, str]) -> bool:
        """Whether the graph draws an asset of each group. If not, one of the groups is asked to open, and the page is loaded
        again: it stays open then, and the whole of the graph is fitted to the window, outside of which nothing is drawn.
        """
        nodes = self.page.locator("svg foreignObject")
        expect(nodes.first).to_be_visible()
        self._rest()
        drawn = set(nodes.locator("div").all_text_contents())
        closed = [group for group, asset in groups.items() if asset not in drawn]
        if closed:
            header = nodes.get_by_text(closed[0], exact=True)
            if header.count():
                header.first.dispatch_event("click")
                self.page.wait_for_timeout(1000)
            self.page.reload()
        return not closed

    def launch(self, base: str, location: str, job: str, config: str, *shown: str) -> str:
        """Start a job from its launchpad as a person who pastes a configuration; returns the run's text at its end, once
        it shows these patterns.
        """
        page = self.page
        page.goto(f"{base}/locations/{location}/jobs/{job}/playground")
        expect(page.get_by_text("No errors")).to_be_visible()
        page.locator(".CodeMirror").first.click()
        page.keyboard.press("Control+A")
        page.keyboard.insert_text(config)
        expect(page.get_by_text("No errors")).to_be_visible()
        button = page.get_by_role("button", name="Launch Run")
        expect(button).to_be_enabled()
        button.click()
        page.wait_for_url("**/runs/**")
        expect(page.get_by_text(re.compile("^RUN_(SUCCESS|FAILURE)$")).first).to_be_visible()
        return self._rest(*shown)

    def check(self) -> None:
        """Nothing broke in the page itself."""
        assert self._errors == []

    def _rest(self, *shown: str) -> str:
        """The text, once it has been the same for a second, but for the times that go on. What a slow server has not
        answered yet leaves the page at rest as well: so what is looked for is waited for.
        """
        for pattern in shown:
            expect(self.page.locator("body")).to_contain_text(re.compile(pattern), use_inner_text=True)
        before, still = "", 0
        for _ in range(40):
            text: str = self.page.inner_text("body")
            shown = CLOCKS.sub("", text)
            still = still + 1 if shown == before else 0
            if still == 3:
                break
            before = shown
            self.page.wait_for_timeout(300)
        return text

    def _judge(self, text: str) -> None:
        assert PASSWORD not in self.page.content()
        assert not TROUBLE.findall(text)
