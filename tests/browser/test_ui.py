"""The demo's deployment as a user sees it in the Dagster UI: `make ui`, opened in a headless Chromium.

All pages are looked at by one test: the deployment is started once for it, and what one page shows was done before it.
"""

import contextlib
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path

import pandas as pd
import pytest
from playwright.sync_api import TimeoutError as NotSeen
from playwright.sync_api import expect

from definitions.expected import expected_numbers, expected_reminders
from definitions.flights import source_file
from tests.browser.served import Served, served
from tests.browser.viewing import View
from tests.gate.patience import FULL, PATIENCE, sized
from tests.orchestration.dg_dev import WARNINGS
from tests.support import until, value

FIRST = date(2013, 1, 1)
LAST = sized(FIRST, date(2013, 1, 2))
NUMBERS = {"ready", "most_leased", "scheduled", "dead_letters", "oldest_ready_seconds"} | {
    *("in_per_minute", "done_per_minute", "wait_seconds_p95")
}
CHECKS = "__ASSET_JOB"
"""The job by which the page of an asset executes its checks."""
_GLANCE_MILLISECONDS = 2_000
"""How long to look for a hint before the mouse is moved again."""
AIRPORT = "SJU"  # not in the airports table, so that its reminders have no address


@pytest.mark.timeout(10 * PATIENCE)
def test_the_pages_show_what_was_done(tab: Callable[[], AbstractContextManager[View]], tmp_path: Path) -> None:
    with served(tmp_path, FIRST, LAST, whole=FULL) as site:
        until(lambda: not site.queue.depth("events").live, "the end of the events")
        until(lambda: site.settled("drain_events"), "the end of the drain runs")
        for page in PAGES:
            with tab() as view:
                page(site, view)
        log = (site.home / "ui.log").read_text(errors="replace")
    assert [line for line in log.splitlines() if any(kind in line for kind in WARNINGS)] == []


def flights() -> pd.DataFrame:
    source = pd.read_csv(source_file("flights"))
    days = pd.to_datetime(source[["year", "month", "day"]])
    return source[(days >= pd.Timestamp(FIRST)) & (days <= pd.Timestamp(LAST))]


def plotted(view: View, wanted: set[str]) -> None:
    """These have plots, and whatever has one is drawn."""

    def drawn() -> bool:
        plots = view.plots()
        return wanted <= plots.keys() and all(plots.values())

    until(drawn, f"the plots of {', '.join(sorted(wanted))}")


def the_sensors_ticks_say_how_the_queue_is(site: Served, view: View) -> None:
    # Without those that asked for nothing, which soon fill the first page.
    view.page.goto(f"{site.base}/locations/events/sensors/events_sensor?status=success")
    expect(view.page.get_by_text(re.compile(r"^[1-9]\d* runs? requested")).first).to_be_visible()
    # The column shows the beginning and the end of a cursor.
    expect(view.page.locator("td").get_by_text(re.compile(r"^[\d,]+ ready, .*…")).first).to_be_visible()
    view.capture("sensor")
    latest = view.page.locator("tr").filter(has_text="Latest tick")
    status = view.page.get_by_text(re.compile(r"^events: 0 ready"))

    def shown() -> bool:
        # A tick that comes while the mouse is there takes the hint with it.
        view.page.mouse.move(0, 0)
        latest.get_by_text("0 runs requested").hover()
        with contextlib.suppress(NotSeen):
            status.wait_for(timeout=_GLANCE_MILLISECONDS)
        return status.is_visible()

    until(shown, "the status of the latest tick")


def the_drain_runs_sum_up_what_they_did(site: Served, view: View) -> None:
    reported = flights()
    lost = int((reported["dep_time"].notna() & reported["arr_time"].isna()).sum())
    succeeded = failed = 0
    for run in site.runs("drain_events"):
        view.page.goto(f"{site.base}/runs/{run}")
        expect(view.page.get_by_text("RUN_SUCCESS")).to_be_visible()
        text = view.capture("run", "Launched by", r"\bsucceeded\s+\d+", r"\bfailed\s+\d+", height=1000)
        succeeded += int(re.search(r"\bsucceeded\s+(\d+)", text)[1])  # type: ignore[index]
        failed += int(re.search(r"\bfailed\s+(\d+)", text)[1])  # type: ignore[index]
    assert (succeeded, failed) == (len(reported) - lost, lost)


def a_queues_page_shows_and_plots_its_numbers(site: Served, view: View) -> None:
    view.page.goto(f"{site.base}/assets/queues/events")
    for shown in ("External Asset", "Flights as they are reported, one job each.", "Latest check results"):
        expect(view.page.get_by_text(shown).first).to_be_visible()
    view.capture("queue")
    view.page.get_by_text("Metadata", exact=True).first.evaluate("heading => heading.scrollIntoView()")
    stats = (r"\bIn: [\d,]+ in the last minute", r"\bWaits until the start: p50 ", r"\bStale writes refused today: 0")
    view.capture("stats", *stats, r"attempt 3 of 3: .* reported no arrival", height=1250)
    view.page.get_by_role("button", name="Plots").click()
    expect(view.page.get_by_text("oldest_ready_seconds")).to_be_visible()
    view.page.get_by_text("Metadata", exact=True).first.evaluate("heading => heading.scrollIntoView()")
    view.capture("queue-plots", height=1150)
    plotted(view, NUMBERS)
    assert view.plots().keys() == NUMBERS


def dead_letters_are_brought_back_by_a_click(site: Served, view: View) -> None:
    letters = site.queue.dead_letters("events")
    assert letters
    view.page.goto(f"{site.base}/assets/queues/events")
    view.page.get_by_role("link", name="Redrive these").first.click()
    expect(view.page.get_by_text("No errors")).to_be_visible()
    expect(view.page.get_by_text("events_redrive_op:")).to_be_visible()
    view.capture("redrive-filled", *(str(letter.id) for letter in letters), "dry_run: true")


def a_queues_checks_say_what_they_are_about(site: Served, view: View) -> None:
    view.page.goto(f"{site.base}/assets/queues/events?view=checks&checkDetail=dead_letters")
    expect(view.page.get_by_text("At most 0 jobs are in the dead letter.")).to_be_visible()
    # Reported again once the drain run has materialised the queue: what is older is not shown.
    expect(view.page.get_by_text(re.compile(r"^(1 job is|\d+ jobs are)"))).to_be_visible()
    checks = ("dead_letters", "stale_writes", "oldest_ready", "stalled_bucket")
    view.capture("checks", *(rf"\b{check}\b" for check in checks))
    for button, executed in (("Execute all", set(checks)), ("Execute", {"dead_letters"})):
        before = site.runs(CHECKS)
        view.page.get_by_text(button, exact=True).click()
        until(lambda before=before: len(site.runs(CHECKS)) > len(before), f"the run of {button}")
        assert site.checks_of(site.runs(CHECKS)[0]) == executed


def a_dead_letter_is_looked_at_redriven_and_succeeds(site: Served, view: View) -> None:
    expected = expected_reminders(LAST)
    count = int((expected["account"] == AIRPORT).sum())
    until(lambda: not site.queue.depth("reminders").live, "the end of the reminders", 2 * PATIENCE)
    why = f"no address for {AIRPORT}"
    letter = next(job for job in site.queue.dead_letters("reminders", limit=1000) if why in (job.error or ""))
    show = f"ops:\n  reminders_show_op:\n    config:\n      id: {letter.id}\n"
    view.launch(site.base, "reminders", "reminders_show", show, f"job {letter.id} of queue reminders is failed")

    (site.home / "contacts.csv").write_text(f"{AIRPORT},arrivals@sju.example\n")
    redrive = f"ops:\n  reminders_redrive_op:\n    config:\n      tags: [{AIRPORT}]\n      dry_run: false\n"
    said = f"queue reminders: {count} jobs were put back"
    view.launch(site.base, "reminders", "reminders_redrive", redrive, said)
    view.capture("redrive", height=1000)
    view.page.get_by_text("[Show Markdown]").first.click()
    expect(view.page.get_by_text(why).first).to_be_visible()
    view.capture("redrive-jobs")

    left = "SELECT count(*) FROM {s}.job_all WHERE queue = 'reminders' AND state <> 'succeeded' AND %s = ANY (tags)"
    until(lambda: value(site.queue, left, AIRPORT) == 0, "the success of what was redriven", 2 * PATIENCE)
    view.launch(site.base, "reminders", "reminders_show", show, f"job {letter.id} of queue reminders is succeeded")


def the_daily_assets_page_plots_each_day(site: Served, view: View) -> None:
    until(lambda: site.materialized("airport_daily") == set(site.days), "the days' analytics", 3 * PATIENCE)
    expected = expected_numbers(FIRST, LAST)
    last = expected[expected["day"] == LAST]
    view.page.goto(f"{site.base}/assets/airport_daily?view=partitions&partition={LAST}")
    expect(view.page.get_by_text("mean_arrival_delay_minutes")).to_be_visible()
    view.capture(
        "daily-partition",
        rf"\bflights\s+{last['flights'].sum()}\b",
        rf"\bcancelled\s+{last['cancelled'].sum()}\b",
        rf"\bdagster/partition_row_count\s+{len(last)}\b",
        *(rf"\b{day}\b" for day in site.days),
    )

    view.page.goto(f"{site.base}/assets/airport_daily")
    view.page.get_by_role("button", name="Plots").click()
    # The default is by partition; by event, there is a plot also of a single day.
    view.page.locator("button").filter(has_text="Events").click()
    view.capture("daily", height=1000)
    plotted(view, {"flights", "cancelled", "mean_arrival_delay_minutes"})


def the_graph_shows_the_queues_before_the_daily_asset(site: Served, view: View) -> None:
    view.page.goto(f"{site.base}/asset-groups")
    until(lambda: view.opened({"queues": "events", "analytics": "airport_daily"}), "the groups' opening")
    nodes = view.page.locator("svg foreignObject")
    for asset in ("events", "reminders", "daily_analytics", "airport_daily"):
        expect(nodes.get_by_text(asset, exact=True).first).to_be_visible()
    expect(nodes.get_by_text("100% filled")).to_have_count(2)  # of the two that have partitions
    view.capture("lineage")


PAGES = sized(
    [
        a_queues_page_shows_and_plots_its_numbers,
        dead_letters_are_brought_back_by_a_click,
    ],
    [
        the_sensors_ticks_say_how_the_queue_is,
        the_drain_runs_sum_up_what_they_did,
        a_queues_page_shows_and_plots_its_numbers,
        dead_letters_are_brought_back_by_a_click,
        a_queues_checks_say_what_they_are_about,
        a_dead_letter_is_looked_at_redriven_and_succeeds,
        the_daily_assets_page_plots_each_day,
        the_graph_shows_the_queues_before_the_daily_asset,
    ],
)
