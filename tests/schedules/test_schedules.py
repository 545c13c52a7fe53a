"""Making, changing, pausing and removing schedules, and what a look enqueues."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownQueue, UnknownSchedule
from dagster_sqlqueue.schedules import CatchUp, Schedules
from dagster_sqlqueue.schedules.model import Due, due
from tests.core.support import Work, claim, rows, value
from tests.schedules.support import Report, outage, overdue_by, steps, tick_all, ticks_of

HOUR = 3_600.0
REPORTS = QueueSpec("work", Report)


def now(queue: SqlQueue) -> datetime:
    found: datetime = value(queue, "SELECT clock_timestamp()")
    return found


def test_a_schedule_waits_for_its_first_tick_and_enqueues_it_once(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    before = now(queue)
    made = schedules.put(spec, "nightly", Work(n=1), cron="30 2 * * *", time_zone="Europe/Berlin")
    local = made.next_tick.astimezone(ZoneInfo("Europe/Berlin"))
    assert before < made.next_tick <= before + timedelta(hours=25)
    assert (local.hour, local.minute) == (2, 30)
    assert (made.revision, made.last_tick, made.paused_at, made.catch_up) == (1, None, None, CatchUp.ONE)
    assert schedules.tick().enqueued == {}
    outage(queue, "nightly", 36 * HOUR)
    assert schedules.tick().enqueued == {("work", "nightly"): 1}
    assert schedules.tick().enqueued == {}
    (tick,) = ticks_of(queue, "nightly")
    after = schedules.schedule("work", "nightly")
    assert after.last_tick == tick
    assert after.next_tick > now(queue)
    assert (tick.astimezone(ZoneInfo("Europe/Berlin")).hour, tick.minute) == (2, 30)


def test_a_job_has_what_its_schedule_says(queue: SqlQueue, schedules: Schedules) -> None:
    job = NewJob(
        {"n": 7},
        priority=4,
        ordering_key="ada",
        unique_key="report",
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
        " FROM {s}.job",
    )
    assert row[:9] == (
        *(tick, 4, "ada", "report", 9, 30.0, [1, 2, 3, 0]),
        *(["eu", 'it\'s, "quoted"', "schedule:hourly"], "local"),
    )
    payload = Report.model_validate(row[9])
    assert payload == Report(n=7, at=tick)
    assert payload.at.utcoffset() == tick.astimezone(ZoneInfo("America/New_York")).utcoffset()
    assert len(claim(queue)) == 1


def test_the_same_again_changes_nothing(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    def put(**changes: Any) -> Any:
        said = {"every": 600, "catch_up": "all", **changes}
        job = said.pop("job", NewJob(Work(n=1), priority=1, tags={"b", "a"}, backoff=Backoff(1)))
        return schedules.put(spec, "s", job, **said)

    first = put()
    assert put() == first
    assert put(every=timedelta(minutes=10)) == first
    outage(queue, "s", 1_200)
    missed = schedules.schedule("work", "s")
    assert put() == missed
    # Another job, or policy: the rule goes on from where it is.
    other = put(job=Work(n=2), catch_up="one")
    assert other.revision == 2
    assert (other.next_tick, other.anchor, other.payload) == (missed.next_tick, missed.anchor, {"n": 2, "note": ""})
    # Another rule: the next tick from now.
    for number, change in enumerate(
        [{"every": 601}, {"every": None, "cron": "* * * * *"}, {"starting": datetime(2020, 1, 1, tzinfo=UTC)}], 3
    ):
        outage(queue, "s", 7_200)
        changed = put(**change)
        assert changed.revision == number
        assert changed.next_tick > now(queue)
        assert changed.created_at == first.created_at
    assert schedules.tick().enqueued == {}


def test_a_start_in_the_future_is_the_first_tick_of_an_interval(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    start = now(queue) + timedelta(days=3, seconds=0.25)
    made = schedules.put(spec, "s", Work(n=1), every=7, starting=start)
    assert schedules.next_ticks("work", "s", 3) == steps(start, 3, 7)
    assert made.next_tick == start
    cron = schedules.put(spec, "c", Work(n=1), cron="0 * * * *", starting=start)
    assert start <= cron.next_tick < start + timedelta(hours=1)
    past = schedules.put(spec, "p", Work(n=1), every=7, starting=start - timedelta(days=700), catch_up="all")
    assert now(queue) < past.next_tick <= now(queue) + timedelta(seconds=7)
    assert (past.next_tick - start) % timedelta(seconds=7) == timedelta(0)


def test_all_that_was_missed_is_enqueued_in_order_and_bounded(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    schedules.put(spec, "s", NewJob(Work(n=1), ordering_key="k"), every=60, catch_up="all")
    last = overdue_by(queue, "s", ticks=2_345, every=60)
    seen = []
    done = schedules.tick()
    while done.enqueued:
        seen.append(done.enqueued["work", "s"])
        assert done.more is (seen[-1] == 1_000)
        done = schedules.tick()
    assert seen == [1_000, 1_000, 345]
    assert ticks_of(queue, "s") == steps(last - 2_344 * timedelta(seconds=60), 2_345, 60)
    assert schedules.schedule("work", "s").last_tick == last


def test_a_long_backlog_holds_no_other_schedule_up(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    for name, ticks in (("long", 5_000), ("short", 2), ("single", 1)):
        schedules.put(spec, name, Work(n=1), every=60, catch_up="all")
        overdue_by(queue, name, ticks=ticks, every=60)
    first = schedules.tick()
    assert first.enqueued == {("work", "long"): 333, ("work", "short"): 2, ("work", "single"): 1}
    assert first.more
    assert tick_all(schedules) == 5_000 - 333


def test_a_schedule_that_another_transaction_holds_is_left_to_it(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    for name in ("a", "b"):
        schedules.put(spec, name, Work(n=1), every=60, catch_up="all")
        overdue_by(queue, name, ticks=1, every=60)
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
    done = schedules.tick()
    at = now(queue)
    assert done.enqueued == {("work", "s"): 1, ("work", "c"): 1}
    (tick,) = ticks_of(queue, "s")
    assert last <= tick <= at
    (tick,) = ticks_of(queue, "c")
    assert timedelta(0) <= at - tick < timedelta(minutes=5)
    assert schedules.schedule("work", "c").next_tick == tick + timedelta(minutes=5)


@pytest.mark.parametrize(("grace", "enqueued"), [(60, 2), (0, 0), (45, 1), (3_600, 5)])
def test_skip_drops_what_is_later_than_its_grace(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work], grace: float, enqueued: int
) -> None:
    schedules.put(spec, "s", Work(n=1), every=30, catch_up="skip", grace_seconds=grace)
    last = overdue_by(queue, "s", ticks=5, every=30, late=20)
    assert tick_all(schedules) == enqueued
    assert ticks_of(queue, "s") == steps(last - (enqueued - 1) * timedelta(seconds=30), enqueued, 30)
    after = schedules.schedule("work", "s")
    assert after.next_tick == last + timedelta(seconds=30)
    assert after.last_tick == (last if enqueued else None)


def test_a_tick_that_was_enqueued_before_is_not_enqueued_again(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    schedules.put(spec, "s", Work(n=1), every=60, catch_up="all")
    overdue_by(queue, "s", ticks=4, every=60)
    assert tick_all(schedules) == 4
    queue.complete(claim(queue, 2))
    # As a backup knows it that was made before.
    outage(queue, "s", 240)
    again = schedules.tick()
    assert (again.enqueued, again.duplicates) == ({("work", "s"): 4}, 4)
    assert len(ticks_of(queue, "s")) == 4
    # And as a schedule does that was removed and made again.
    kept = schedules.schedule("work", "s")
    schedules.remove("work", "s")
    schedules.put(spec, "s", Work(n=2), every=60, catch_up="all", starting=kept.anchor)
    outage(queue, "s", 240)
    assert schedules.tick().duplicates == 4
    assert len(ticks_of(queue, "s")) == 4


@pytest.mark.parametrize("policy", list(CatchUp))
def test_a_tick_is_due_from_its_very_moment_on(schedules: Schedules, spec: QueueSpec[Work], policy: CatchUp) -> None:
    made = schedules.put(spec, "s", Work(n=1), cron="*/5 * * * *", catch_up=policy, grace_seconds=0)
    tick = made.next_tick
    assert due(made, tick, 10) == Due(made, [tick], tick + timedelta(minutes=5))
    assert due(made, tick - timedelta(microseconds=1), 10) == Due(made, [], tick)


def test_with_a_unique_key_ticks_do_not_pile_up(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    schedules.put(spec, "s", NewJob(Work(n=1), unique_key="one at a time"), every=60, catch_up="all")
    overdue_by(queue, "s", ticks=3, every=60)
    done = schedules.tick()
    assert (done.enqueued, done.duplicates) == ({("work", "s"): 3}, 2)
    assert len(ticks_of(queue, "s")) == 1


def test_a_pause_is_an_outage_of_one_schedule(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    for name in ("a", "b"):
        schedules.put(spec, name, Work(n=1), every=60, catch_up="all")
    paused = schedules.pause("work", "a")
    assert paused.paused_at is not None
    assert schedules.pause("work", "a") == paused
    for name in ("a", "b"):
        overdue_by(queue, name, ticks=3, every=60)
    assert schedules.put(spec, "a", Work(n=2), every=60, catch_up="all").paused_at == paused.paused_at
    assert schedules.tick().enqueued == {("work", "b"): 3}
    assert schedules.resume("work", "a").paused_at is None
    assert schedules.tick().enqueued == {("work", "a"): 3}
    assert (schedules.seconds_to_wait() or 0) > 0
    for name in ("a", "b"):
        schedules.pause("work", name)
    assert schedules.seconds_to_wait() is None


def test_a_queue_that_is_paused_is_filled(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    schedules.put(spec, "s", Work(n=1), every=60)
    queue.pause("work")
    overdue_by(queue, "s", ticks=1, every=60)
    assert tick_all(schedules) == 1
    assert queue.depth("work").ready == 1


def test_schedules_are_listed_and_removed(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    other = replace(spec, name="other")
    queue.create_queue(other)
    assert schedules.schedules() == []
    made = [schedules.put(one, name, Work(n=1), every=60) for one in (other, spec) for name in ("a/b", "z")]
    assert schedules.schedules() == made
    assert schedules.schedules("work") == made[2:]
    schedules.remove("other", "a/b")
    assert [schedule.name for schedule in schedules.schedules("other")] == ["z"]
    with pytest.raises(UnknownSchedule, match=r"queue 'other' has no schedule 'a/b' \(it has: 'z'\)"):
        schedules.remove("other", "a/b")


def test_what_cannot_be_used_is_paused_with_the_reason_and_holds_nobody_up(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    queue.set_region("work", "eu", [3])
    for name in ("zone", "rule", "region", "good"):
        job = NewJob(Work(n=1), region="eu" if name == "region" else None)
        schedules.put(spec, name, job, cron="* * * * *", catch_up="all")
        outage(queue, name, 180)
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
    mended = schedules.put(spec, "rule", Work(n=1), cron="* * * * *", catch_up="all")
    assert (mended.error, mended.paused_at) == (None, None)
    assert set(schedules.tick().enqueued) == {("work", "region")}


def test_in_the_transaction_that_is_rolled_back_nothing_has_happened(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]
) -> None:
    schedules.put(spec, "s", Work(n=1), every=60, catch_up="all")
    overdue_by(queue, "s", ticks=2, every=60)
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


class Days(BaseModel):
    day: date


def test_the_tick_reaches_a_strict_model_and_one_with_aliases(queue: SqlQueue, schedules: Schedules) -> None:
    spec = QueueSpec("work", Strict)
    job = Strict.model_validate({"at": datetime(2001, 1, 1, tzinfo=UTC), "the name": "x"})
    made = schedules.put(spec, "s", job, every=60, tick_field="at")
    assert made.payload == {"the name": "x"}
    tick = overdue_by(queue, "s", ticks=1, every=60)
    tick_all(schedules)
    (claimed,) = claim(queue)
    assert Strict.model_validate_json(claimed.payload) == Strict.model_validate({"at": tick, "the name": "x"})


def test_a_payload_that_is_no_object(queue: SqlQueue, schedules: Schedules) -> None:
    spec = QueueSpec("work", RootModel[list[int]])
    schedules.put(spec, "s", RootModel[list[int]]([1, 2]), every=60)
    overdue_by(queue, "s", ticks=1, every=60)
    assert tick_all(schedules) == 1
    assert value(queue, "SELECT payload FROM {s}.job") == [1, 2]
    with pytest.raises(InvalidInput, match="tick_field is 'at', and the payload is no JSON object"):
        schedules.put(spec, "t", [1], every=60, tick_field="at")  # type: ignore[arg-type]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "cron": ({"cron": "60 * * * *"}, "does not parse"),
    "both": ({"every": 5}, "both was given"),
    "no interval": ({"cron": None, "every": "soon"}, "the interval is 'soon'; give seconds"),
    "neither": ({"cron": None}, "neither was given"),
    "zone": ({"time_zone": "Europe/Nowhere"}, "no time zone 'Europe/Nowhere'"),
    "policy": ({"catch_up": "some"}, "catch_up is 'some'; it must be one of 'skip', 'one', 'all'"),
    "grace": ({"grace_seconds": -1}, "grace_seconds is -1"),
    "no number": ({"grace_seconds": float("nan")}, "grace_seconds is nan"),
    "start": ({"starting": datetime(2026, 1, 1)}, "starting is .* time zone"),
    "no start": ({"starting": "today"}, "starting is 'today'"),
    "name": ({"name": ""}, "schedule name '' is not usable"),
    "long name": ({"name": "x" * 201}, "is not usable"),
    "lines": ({"name": "a\nb"}, "is not usable"),
    "payload": ({"job": {"n": "many"}}, "^the payload does not fit Work"),
    "no payload": ({"job": None, "tick_field": "n"}, "^the payload does not fit Work"),
    "another model": ({"job": Report(n=1, at=datetime.now(UTC)), "tick_field": "n"}, "^the payload is a Report"),
    "priority": ({"job": NewJob(Work(n=1), priority=10)}, "^priority is 10"),
    "tags": ({"job": NewJob(Work(n=1), tags="abc")}, "^tags is 'abc'"),
    "too many tags": ({"job": NewJob(Work(n=1), tags=[str(n) for n in range(100)])}, "tags has 101 words"),
    "region": ({"job": NewJob(Work(n=1), region="mars")}, "region is 'mars', which has no bucket"),
    "id": ({"job": NewJob(Work(n=1), id=uuid4())}, "a schedule gives each of its jobs its own"),
    "run_at": ({"job": NewJob(Work(n=1), run_at=datetime.now(UTC))}, "^run_at is"),
    "no field": ({"tick_field": "when"}, "tick_field is 'when', which Work of queue 'work' does not have"),
    "wrong field": ({"tick_field": "n"}, "n: Input should be a valid integer"),
    "empty field": ({"tick_field": ""}, "tick_field is ''"),
}


@pytest.mark.parametrize("case", list(BAD))
def test_what_is_refused_changes_nothing(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work], case: str
) -> None:
    made = schedules.put(spec, "s", Work(n=1), cron="* * * * *")
    changes, said = BAD[case]
    arguments: dict[str, Any] = {"name": "s", "job": Work(n=2), "cron": "*/2 * * * *", **changes}
    with pytest.raises(InvalidInput, match=said):
        schedules.put(spec, arguments.pop("name"), arguments.pop("job"), **arguments)
    assert schedules.schedules() == [made]


def test_a_field_that_cannot_hold_a_time_is_refused(schedules: Schedules) -> None:
    with pytest.raises(InvalidPayload, match="day: "):
        schedules.put(QueueSpec("work", Days), "s", {}, every=60, tick_field="day")
    assert schedules.schedules() == []


def test_unknown_names(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    with pytest.raises(UnknownQueue, match="there is no queue 'nosuch'"):
        schedules.put(replace(spec, name="nosuch"), "s", Work(n=1), every=60)
    for verb in (schedules.remove, schedules.pause, schedules.resume, schedules.next_ticks, schedules.schedule):
        with pytest.raises(UnknownSchedule, match="queue 'work' has no schedule 'nosuch'"):
            verb("work", "nosuch")
        with pytest.raises(UnknownQueue):
            verb("nosuch", "s")
        with pytest.raises(InvalidInput):
            verb("No Queue", "s")
    with pytest.raises(UnknownQueue):
        schedules.schedules("nosuch")
    schedules.put(spec, "s", Work(n=1), every=60)
    for count in (0, 10_001, True, 1.5):
        with pytest.raises(InvalidInput, match="count is"):
            schedules.next_ticks("work", "s", count)  # type: ignore[arg-type]
