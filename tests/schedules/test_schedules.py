"""Schedules: made, changed, paused, listed and removed, and what is refused."""

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from dagster_sqlqueue import Backoff, NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput, InvalidPayload, UnknownQueue, UnknownSchedule
from dagster_sqlqueue.schedules import Schedules
from tests.schedules.support import Report, now, outage, overdue_by, steps
from tests.support import Work


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
    start = now(queue) - timedelta(days=700, minutes=5)
    for number, change in enumerate([{"every": 601}, {"every": None, "cron": "* * * * *"}, {"starting": start}], 3):
        outage(queue, "s", 7_200)
        before = now(queue)
        changed = put(**change)
        assert changed.revision == number
        assert changed.next_tick > before
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
    before = now(queue)
    past = schedules.put(spec, "p", Work(n=1), every=7, starting=start - timedelta(days=700), catch_up="all")
    assert before < past.next_tick <= now(queue) + timedelta(seconds=7)
    assert (past.next_tick - start) % timedelta(seconds=7) == timedelta(0)


@pytest.mark.parametrize("rule", [{"every": 60}, {"cron": "0 * * * *"}, {"cron": "5 4 * * *"}], ids=str)
def test_a_start_at_either_end_of_the_calendar(
    queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work], rule: dict[str, Any]
) -> None:
    before = now(queue)
    first = datetime(1, 1, 1, tzinfo=UTC)
    assert before < schedules.put(spec, "s", Work(n=1), starting=first, **rule).next_tick < before + timedelta(days=2)
    # By the clocks of the zone it is in the year 10000.
    late = datetime(9999, 12, 31, 20, tzinfo=UTC)
    with pytest.raises(InvalidInput, match="would never tick after 9999-12-31"):
        schedules.put(spec, "s", Work(n=1), time_zone="Asia/Tokyo", starting=late, **rule)


def test_a_pause_is_an_outage_of_one_schedule(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    for name in ("a", "b"):
        schedules.put(spec, name, Work(n=1), every=3_600, catch_up="all")
    paused = schedules.pause("work", "a")
    assert paused.paused_at is not None
    assert schedules.pause("work", "a") == paused
    for name in ("a", "b"):
        overdue_by(queue, name, ticks=3, every=3_600)
    assert schedules.put(spec, "a", Work(n=2), every=3_600, catch_up="all").paused_at == paused.paused_at
    assert schedules.tick().enqueued == {("work", "b"): 3}
    assert schedules.resume("work", "a").paused_at is None
    assert schedules.tick().enqueued == {("work", "a"): 3}
    assert (schedules.seconds_to_wait() or 0) > 0
    for name in ("a", "b"):
        schedules.pause("work", name)
    assert schedules.seconds_to_wait() is None


def test_schedules_are_listed_and_removed(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    other = replace(spec, name="other")
    queue.create_queue(other)
    assert schedules.schedules() == []
    made = [schedules.put(one, name, Work(n=1), every=3_600) for one in (other, spec) for name in ("a/b", "z")]
    assert schedules.schedules() == made
    assert schedules.schedules("work") == made[2:]
    schedules.remove("other", "a/b")
    assert [schedule.name for schedule in schedules.schedules("other")] == ["z"]
    with pytest.raises(UnknownSchedule, match=r"queue 'other' has no schedule 'a/b' \(it has: 'z'\)"):
        schedules.remove("other", "a/b")


class Days(BaseModel):
    day: date


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "cron": ({"cron": "60 * * * *"}, "does not parse"),
    "both": ({"every": 5}, "both were given"),
    "no interval": ({"cron": None, "every": "soon"}, "the interval is 'soon'; give seconds"),
    "neither": ({"cron": None}, "neither was given"),
    "zone": ({"time_zone": "Europe/Nowhere"}, "no time zone 'Europe/Nowhere'"),
    "policy": ({"catch_up": "some"}, "catch_up is 'some'; it must be one of 'skip', 'one', 'all'"),
    "grace": ({"grace_seconds": -1}, "grace_seconds is -1"),
    "a truth value": ({"grace_seconds": True}, "grace_seconds is True"),
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
    "tags of two types": ({"job": NewJob(Work(n=1), tags={7, "a"})}, "^tags must be texts .* and holds 7"),  # type: ignore[arg-type]
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
    with pytest.raises(InvalidInput, match="the queue was given as 'work'; give its declaration"):
        schedules.put("work", "s", Work(n=2), cron="*/2 * * * *")  # type: ignore[arg-type]
    assert schedules.schedules() == [made]


def test_a_field_that_cannot_hold_a_time_is_refused(schedules: Schedules) -> None:
    with pytest.raises(InvalidPayload, match="day: "):
        schedules.put(QueueSpec("work", Days), "s", {}, every=3_600, tick_field="day")
    assert schedules.schedules() == []


def test_unknown_names(queue: SqlQueue, schedules: Schedules, spec: QueueSpec[Work]) -> None:
    with pytest.raises(UnknownQueue, match="there is no queue 'nosuch'"):
        schedules.put(replace(spec, name="nosuch"), "s", Work(n=1), every=3_600)
    for verb in (schedules.remove, schedules.pause, schedules.resume, schedules.next_ticks, schedules.schedule):
        with pytest.raises(UnknownSchedule, match="queue 'work' has no schedule 'nosuch'"):
            verb("work", "nosuch")
        with pytest.raises(UnknownQueue):
            verb("nosuch", "s")
        with pytest.raises(InvalidInput):
            verb("No Queue", "s")
    with pytest.raises(UnknownQueue):
        schedules.schedules("nosuch")
    schedules.put(spec, "s", Work(n=1), every=3_600)
    for count in (0, 10_001, True, 1.5):
        with pytest.raises(InvalidInput, match="count is"):
            schedules.next_ticks("work", "s", count)  # type: ignore[arg-type]
