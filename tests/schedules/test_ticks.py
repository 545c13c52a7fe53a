"""What a tick of the schedules enqueues: each tick once, what was missed by the schedule's policy, and what stops it."""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.schedules import CatchUp, Schedules
from dagster_sqlqueue.schedules.model import Due, due
from tests.gate.patience import sized
from tests.schedules.support import Report, now, outage, overdue_by, steps, tick_all, ticks_of
from tests.support import Work, claim, rows, value

HOUR = 3_600.0
REPORTS = QueueSpec("work", Report)


def test_a_schedule_waits_for_its_first_tick_and_enqueues_it_once(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    before = now(queue)
    made = schedules.put(spec, "nightly", Work(n=1), cron="30 4 * * *", time_zone="Europe/Berlin")
    local = made.next_tick.astimezone(ZoneInfo("Europe/Berlin"))
    assert before < made.next_tick <= before + timedelta(hours=25)
    assert (local.hour, local.minute) == (4, 30)
    assert (made.revision, made.last_tick, made.paused_at, made.catch_up) == (1, None, None, CatchUp.ONE)
    assert schedules.tick().enqueued == {}
    outage(queue, "nightly", 36 * HOUR)
    assert schedules.tick().enqueued == {("work", "nightly"): 1}
    assert schedules.tick().enqueued == {}
    (tick,) = ticks_of(queue, "nightly")
    after = schedules.schedule("work", "nightly")
    assert after.last_tick == tick
    assert after.next_tick > now(queue)
    assert (tick.astimezone(ZoneInfo("Europe/Berlin")).hour, tick.minute) == (4, 30)


def test_a_job_has_what_its_schedule_says(queue: SqlQueue, schedules: Schedules) -> None:
    job = NewJob(
        {"n": 7},
        priority=4,
        ordering_key="ada",
        unique_key="report",
        unique_until="claim",
        max_attempts=9,
        timeout_seconds=30.0,
        backoff=Backoff(1, 2, 3, 0),
        tags=["eu", 'it\'s, "quoted"'],
        region="local",
    )
    schedules.put(REPORTS, "hourly", job, every=HOUR, time_zone="America/New_York", tick_field="at")
    tick = overdue_by(queue, "hourly", ticks=1, every=HOUR)
    assert tick_all(schedules) == 1
    (row,) = rows(
        queue,
        "SELECT run_at, priority, ordering_key, unique_key, max_attempts, timeout_seconds, backoff, tags, region, payload"
        " FROM {s}.job WHERE unique_until_claim",
    )
    assert row[:9] == (
        *(tick, 4, "ada", "report", 9, 30.0, [1, 2, 3, 0]),
        *(["eu", 'it\'s, "quoted"', "schedule:hourly"], "local"),
    )
    payload = Report.model_validate(row[9])
    assert payload == Report(n=7, at=tick)
    assert payload.at.utcoffset() == tick.astimezone(ZoneInfo("America/New_York")).utcoffset()
    assert len(claim(queue)) == 1


def test_all_that_was_missed_is_enqueued_in_order_and_bounded(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    schedules.put(spec, "s", NewJob(Work(n=1), ordering_key="k"), every=3_600, catch_up="all")
    last = overdue_by(queue, "s", ticks=2_345, every=3_600)
    seen = []
    done = schedules.tick()
    while done.enqueued:
        seen.append(done.enqueued["work", "s"])
        assert done.more is (seen[-1] == 1_000)
        done = schedules.tick()
    assert seen == [1_000, 1_000, 345]
    assert ticks_of(queue, "s") == steps(last - 2_344 * timedelta(hours=1), 2_345, 3_600)
    assert schedules.schedule("work", "s").last_tick == last


def test_a_long_backlog_holds_no_other_schedule_up(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    long = sized(1_500, 5_000)
    for name, ticks in (("long", long), ("short", 2), ("single", 1)):
        schedules.put(spec, name, Work(n=1), every=3_600, catch_up="all")
        overdue_by(queue, name, ticks=ticks, every=3_600)
    first = schedules.tick()
    assert first.enqueued == {("work", "long"): 333, ("work", "short"): 2, ("work", "single"): 1}
    assert first.more
    assert tick_all(schedules) == long - 333


def test_a_schedule_that_another_transaction_holds_is_left_to_it(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    for name in ("a", "b"):
        schedules.put(spec, name, Work(n=1), every=3_600, catch_up="all")
        overdue_by(queue, name, ticks=1, every=3_600)
    with queue.database.transaction() as transaction:
        held = transaction.run("schedules_due", {"limit": 1})
        (other,) = {"a", "b"} - {held[0][1]}
        assert schedules.tick().enqueued == {("work", other): 1}
        assert schedules.tick().enqueued == {}
    assert schedules.tick().enqueued == {("work", held[0][1]): 1}


def test_one_of_what_was_missed_is_the_latest(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    schedules.put(spec, "s", Work(n=1), every=0.1, catch_up="one")
    schedules.put(spec, "c", Work(n=1), cron="*/5 * * * *", catch_up="one")
    last = overdue_by(queue, "s", ticks=20_000_000, every=0.1, late=0.05)
    outage(queue, "c", 100 * 86_400)
    before = now(queue)
    done = schedules.tick()
    after = now(queue)
    assert done.enqueued == {("work", "s"): 1, ("work", "c"): 1}
    (tick,) = ticks_of(queue, "s")
    assert last <= tick <= after
    (tick,) = ticks_of(queue, "c")
    assert before - timedelta(minutes=5) < tick <= after
    assert schedules.schedule("work", "c").next_tick == tick + timedelta(minutes=5)


@pytest.mark.parametrize(("grace", "enqueued"), [(7_200, 2), (0, 0), (5_400, 1), (432_000, 5)])
def test_skip_drops_what_is_later_than_its_grace(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work], grace: float, enqueued: int
) -> None:
    schedules.put(spec, "s", Work(n=1), every=3_600, catch_up="skip", grace_seconds=grace)
    last = overdue_by(queue, "s", ticks=5, every=3_600, late=2_400)
    assert tick_all(schedules) == enqueued
    assert ticks_of(queue, "s") == steps(last - (enqueued - 1) * timedelta(hours=1), enqueued, 3_600)
    after = schedules.schedule("work", "s")
    assert after.next_tick == last + timedelta(hours=1)
    assert after.last_tick == (last if enqueued else None)


def test_a_tick_that_was_enqueued_before_is_not_enqueued_again(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    schedules.put(spec, "s", Work(n=1), every=3_600, catch_up="all")
    overdue_by(queue, "s", ticks=4, every=3_600)
    assert tick_all(schedules) == 4
    queue.complete(claim(queue, 2))
    # As a backup knows it that was made before.
    outage(queue, "s", 4 * 3_600)
    again = schedules.tick()
    assert (again.enqueued, again.duplicates) == ({("work", "s"): 4}, 4)
    assert len(ticks_of(queue, "s")) == 4
    # And as a schedule does that was removed and made again.
    kept = schedules.schedule("work", "s")
    schedules.remove("work", "s")
    schedules.put(spec, "s", Work(n=2), every=3_600, catch_up="all", starting=kept.anchor)
    outage(queue, "s", 4 * 3_600)
    assert schedules.tick().duplicates == 4
    assert len(ticks_of(queue, "s")) == 4


@pytest.mark.parametrize("policy", list(CatchUp))
def test_a_tick_is_due_from_its_very_moment_on(schedules: Schedules, spec: QueueSpec[Work], policy: CatchUp) -> None:
    made = schedules.put(spec, "s", Work(n=1), cron="*/5 * * * *", catch_up=policy, grace_seconds=0)
    tick = made.next_tick
    assert due(made, tick, 10) == Due(made, [tick], tick + timedelta(minutes=5))
    assert due(made, tick - timedelta(microseconds=1), 10) == Due(made, [], tick)


def test_with_a_unique_key_ticks_do_not_pile_up(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    schedules.put(spec, "s", NewJob(Work(n=1), unique_key="one at a time"), every=3_600, catch_up="all")
    overdue_by(queue, "s", ticks=3, every=3_600)
    done = schedules.tick()
    assert (done.enqueued, done.duplicates) == ({("work", "s"): 3}, 2)
    assert len(ticks_of(queue, "s")) == 1


def test_a_queue_that_is_paused_is_filled(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    schedules.put(spec, "s", Work(n=1), every=3_600)
    queue.pause("work")
    overdue_by(queue, "s", ticks=1, every=3_600)
    assert tick_all(schedules) == 1
    assert queue.depth("work").ready == 1


def test_what_cannot_be_used_is_paused_with_the_reason_and_holds_nobody_up(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    queue.set_region("work", "eu", [3])
    for name in ("zone", "rule", "region", "good"):
        job = NewJob(Work(n=1), region="eu" if name == "region" else None)
        # No tick comes while the test goes on.
        schedules.put(spec, name, job, cron="@yearly", catch_up="all")
        outage(queue, name, 366 * 86_400)
    rows(queue, "UPDATE {s}.schedule SET time_zone = 'Mars/Olympus' WHERE name = 'zone'")
    rows(queue, "UPDATE {s}.schedule SET cron = '99 * * * *' WHERE name = 'rule'")
    rows(queue, "UPDATE {s}.bucket SET region = 'local'")
    kept = {schedule.name: schedule for schedule in schedules.schedules()}
    done = schedules.tick()
    assert set(done.enqueued) == {("work", "good")}
    assert "no time zone 'Mars/Olympus'" in done.failed["work", "zone"]
    assert "'99 * * * *' does not parse" in done.failed["work", "rule"]
    assert done.failed["work", "region"].startswith("region is 'eu', which has no bucket in queue 'work'")
    assert schedules.tick().failed == {}
    for (_, name), reason in done.failed.items():
        found = schedules.schedule("work", name)
        assert found.error == reason
        assert found.paused_at is not None
        assert (found.next_tick, found.last_tick) == (kept[name].next_tick, None)
    # Put right, or resumed once the cause is gone, it goes on.
    queue.set_region("work", "eu", [2])
    assert schedules.resume("work", "region").error is None
    mended = schedules.put(spec, "rule", Work(n=1), cron="@yearly", catch_up="all")
    assert (mended.error, mended.paused_at) == (None, None)
    assert set(schedules.tick().enqueued) == {("work", "region")}


def test_in_the_transaction_that_is_rolled_back_nothing_has_happened(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    schedules.put(spec, "s", Work(n=1), every=3_600, catch_up="all")
    overdue_by(queue, "s", ticks=2, every=3_600)
    before = schedules.schedule("work", "s")
    rows(queue, "ALTER TABLE {s}.job ADD CONSTRAINT refused CHECK (queue <> 'work')")
    with pytest.raises(Exception, match="refused"):
        schedules.tick()
    assert schedules.schedule("work", "s") == before
    rows(queue, "ALTER TABLE {s}.job DROP CONSTRAINT refused")
    assert tick_all(schedules) == 2


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    at: datetime
    named: str = Field(alias="the name")


def test_the_tick_reaches_a_strict_model_and_one_with_aliases(queue: SqlQueue, schedules: Schedules) -> None:
    spec = QueueSpec("work", Strict)
    job = Strict.model_validate({"at": datetime(2001, 1, 1, tzinfo=UTC), "the name": "x"})
    made = schedules.put(spec, "s", job, every=3_600, tick_field="at")
    assert made.payload == {"the name": "x"}
    tick = overdue_by(queue, "s", ticks=1, every=3_600)
    tick_all(schedules)
    (claimed,) = claim(queue)
    assert Strict.model_validate_json(claimed.payload) == Strict.model_validate({"at": tick, "the name": "x"})


def test_a_payload_that_is_no_object(queue: SqlQueue, schedules: Schedules) -> None:
    spec = QueueSpec("work", RootModel[list[int]])
    schedules.put(spec, "s", RootModel[list[int]]([1, 2]), every=3_600)
    overdue_by(queue, "s", ticks=1, every=3_600)
    assert tick_all(schedules) == 1
    assert value(queue, "SELECT payload FROM {s}.job") == [1, 2]
    with pytest.raises(InvalidInput, match="tick_field is 'at', and the payload is no JSON object"):
        schedules.put(spec, "t", [1], every=3_600, tick_field="at")  # type: ignore[arg-type]
