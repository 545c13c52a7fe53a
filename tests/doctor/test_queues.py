"""`doctor`: each finding about queues, keys, schedules, batches and settings, on a real server."""

import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_sqlqueue import Consumer, NewJob, QueueSpec, Selection, SqlQueue
from dagster_sqlqueue.doctor import schema_checks
from dagster_sqlqueue.doctor.server_checks import Check, Verdict
from dagster_sqlqueue.schedules import Schedules
from tests.cli.support import Cli
from tests.doctor.support import findings
from tests.support import Work, claim, make_due, rows


def test_queues_that_stand_still(queue: SqlQueue, schema: str, spec: QueueSpec[Work]) -> None:
    queue.enqueue(spec, Work(n=1))
    assert findings(queue)["queues"].verdict is Verdict.OK
    make_due(queue)
    found = findings(queue)["queues"]
    assert found.verdict is Verdict.WARN
    assert re.search(r"work stands still, with jobs due for 36[56] d\b", found.found)
    claim(queue)
    assert findings(queue)["queues"].verdict is Verdict.OK
    with queue.database.connection() as connection:
        connection.execute(f"UPDATE {schema}.queue SET paused_at = now() - interval '2 days'".encode())
    found = findings(queue)["queues"]
    assert "work is paused for 2 d" in found.found
    assert found.cure.endswith("sqlqueue resume work")
    queue.pause("work", until=86_400.0)
    assert findings(queue)["queues"].verdict is Verdict.OK, "it goes on by itself"


@pytest.mark.parametrize("turns", [{"ordered": True}, {"max_running_per_key": 1}], ids=["ordered", "limited"])
def test_keys_whose_jobs_wait_for_a_turn_that_nobody_gives_them(
    cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], turns: dict[str, Any]
) -> None:
    parked = "UPDATE {s}.job SET available_at = 'infinity' WHERE ordering_key <> 'healthy' AND state = 'queued'"
    for name, found in (("work", ["healthy", "b", "a'\x1b[1m", "c"]), ("other", ["x", "x"])):
        made = replace(spec, name=name, **turns)
        queue.create_queue(made)
        queue.enqueue_many(made, [NewJob(Work(n=1), ordering_key=key) for key in found])
    assert findings(queue)["keys"] == Check("keys", Verdict.OK, "none waits for a turn that no other job gives it")
    rows(queue, parked)
    before = rows(queue, "SELECT j::text FROM {s}.job AS j ORDER BY 1")
    found = findings(queue)["keys"]
    assert found.verdict is Verdict.WARN
    assert found.found == (
        "jobs of 1 key of queue other, 'x', wait for a turn that no other job gives them;"
        ' jobs of 3 keys of queue work, such as "a\'\\x1b[1m", wait for a turn that no other job gives them'
    )
    assert found.cure == "promote them with: sqlqueue maintain (run it daily)"
    result = json.loads(cli.run("doctor", "--json").stdout)["checks"]
    assert {"name": "keys", "verdict": "warn", "found": found.found, "cure": found.cure} in result
    assert rows(queue, "SELECT j::text FROM {s}.job AS j ORDER BY 1") == before
    said = cli.run("maintain").stdout
    assert "promoted jobs of 4 ordering keys that waited for their turn though their key was free\n" in said
    assert findings(queue)["keys"].verdict is Verdict.OK
    assert "promoted" not in cli.run("maintain").stdout


def test_schedules_that_nobody_ticks(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    schedules = Schedules(queue)
    schedules.put(spec, "poll", Work(n=1), every=3_600)
    schedules.put(spec, "later", Work(n=1), cron="@yearly")
    assert findings(queue)["schedules"].verdict is Verdict.OK
    schedules.put(spec, "longer", Work(n=2), every=7_200)
    move = "UPDATE {s}.schedule SET next_tick = statement_timestamp() - make_interval(secs => %s) WHERE name = %s"
    rows(queue, move, 5, "poll")
    assert findings(queue)["schedules"].verdict is Verdict.OK
    rows(queue, move, 61, "poll")
    rows(queue, move, 7_261, "longer")
    found = findings(queue)["schedules"]
    assert found.verdict is Verdict.WARN
    assert found.found == "work/longer and 1 more are overdue by 2 h 1 min: no scheduler runs"
    assert found.cure == "start one, or more, with: sqlqueue schedule run"
    schedules.pause("work", "longer")
    assert "work/poll is overdue by 1 min" in findings(queue)["schedules"].found
    schedules.tick()
    assert findings(queue)["schedules"].verdict is Verdict.OK


def test_schedules_of_a_paused_queue(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    schedules = Schedules(queue)
    for name in ("a", "b"):
        schedules.put(spec, name, Work(n=1), cron="@yearly")
    queue.pause("work")
    found = findings(queue)["schedules"]
    assert (found.verdict, found.found) == (Verdict.WARN, "work is paused, and 2 schedules go on enqueuing jobs on it")
    assert found.cure == "resume it with: sqlqueue resume work; or: sqlqueue schedule pause work NAME"
    queue.pause("work", until=3600)
    assert findings(queue)["schedules"].verdict is Verdict.OK, "it goes on by itself"
    queue.pause("work")
    schedules.pause("work", "a")
    assert "a schedule goes on" in findings(queue)["schedules"].found
    schedules.pause("work", "b")
    assert findings(queue)["schedules"].verdict is Verdict.OK


def test_schedules_that_a_scheduler_had_to_pause(queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    schedules = Schedules(queue)
    schedules.put(spec, "at home", Work(n=1), cron="@daily")
    rows(queue, "UPDATE {s}.schedule SET next_tick = now() - interval '1 day', time_zone = 'Mars/Base'")
    schedules.tick()
    found = findings(queue)["schedules"]
    assert found.verdict is Verdict.WARN
    assert found.found.startswith("work/at home was paused by a scheduler: there is no time zone 'Mars/Base'")
    assert found.cure == "correct it; then: sqlqueue schedule resume work 'at home'"


def test_batches_that_want_looking_after(queue: SqlQueue) -> None:
    assert findings(queue)["batches"].verdict is Verdict.OK
    rows(
        queue,
        "INSERT INTO {s}.batch (id, key, queue, state, mode, lease_until, owner, attempt, error, unmoved, published_at)"
        " SELECT gen_random_uuid(), made.key, 'work', state, mode, now() - ago, 'w', attempt, 'out of memory', unmoved,"
        " CASE state WHEN 'published' THEN now() - ago END"
        " FROM (VALUES ('a', 'sealed', 'leased', interval '2 hours', 1, false),"
        " ('b', 'sealed', 'leased', interval '1 minute', 1, false),"
        " ('c', 'sealing', 'transactional', interval '2 hours', 1, false),"
        " ('d', 'published', 'leased', interval '2 hours', 1, true),"
        " ('e', 'published', 'leased', interval '2 hours', 1, true),"
        " ('f', 'abandoned', 'leased', interval '2 hours', 3, false),"
        " ('g', 'abandoned', 'leased', interval '2 hours', 2, false)"
        ") AS made (key, state, mode, ago, attempt, unmoved)",
    )
    found = findings(queue)["batches"]
    assert found.verdict is Verdict.WARN
    assert found.found == (
        "work: a is left by the driver for an hour or more, with its jobs; work: the files of d and 1 more are not in their"
        " place for an hour or more; work: f is abandoned 3 times in a row or more: out of memory"
    )
    rows(queue, "UPDATE {s}.batch SET state = 'abandoned' WHERE key IN ('a', 'b', 'c')")
    rows(queue, "UPDATE {s}.batch SET unmoved = false")
    rows(
        queue,
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner, created_at)"
        " VALUES (gen_random_uuid(), 'f', 'work', 'published', now(), 'w', now() + interval '1 second')",
    )
    assert findings(queue)["batches"].verdict is Verdict.OK


def test_settings_in_which_code_and_database_differ_are_found_with_and_without_the_code(
    queue: SqlQueue, spec: QueueSpec[Work], bare: Cli
) -> None:
    assert findings(queue)["settings"].verdict is Verdict.OK
    Consumer(queue, replace(spec, max_attempts=9), lambda job: None).drain()
    check = findings(queue)["settings"]
    assert check.verdict is Verdict.WARN
    assert "queue 'work' has other settings than the code: max_attempts is 3 where the code says 9" in check.found
    assert check.cure == "sqlqueue create work --max-attempts 9; else change the code"
    cli = Cli({**bare.environment, "SQLQUEUE_SCHEMA": queue.database.schema})
    assert cli.run(*check.cure.partition(";")[0].split()[1:]).exit_code == 0
    assert findings(queue)["settings"].verdict is Verdict.OK
    # Whatever else it finds of the tests' server.
    report = json.loads(cli.run("doctor", "tests.worker.jobs:work", "tests.worker.jobs:other", "--json").stdout)
    (found,) = (check["found"] for check in report["checks"] if check["name"] == "settings")
    assert "there is no queue 'other'; queue 'work' has other settings" in found
    assert "max_attempts is 9 where the code says 3" in found


@pytest.mark.parametrize("end", ["'infinity'", "now() + interval '3 days'"])
@pytest.mark.parametrize("ordered", [False, True])
def test_leases_that_no_setting_makes_as_long(
    cli: Cli, queue: SqlQueue, spec: QueueSpec[Work], end: str, ordered: bool
) -> None:
    made = replace(spec, name="other", ordered=ordered, lease_seconds=86_400.0)
    queue.create_queue(made)
    queue.enqueue_many(made, [NewJob(Work(n=1), ordering_key=f"{n % 3}") for n in range(6)])
    queue.enqueue(made, NewJob(Work(n=1), run_at=datetime.now(UTC) + timedelta(days=300)))
    held = queue.enqueue(made, Work(n=2))
    assert held is not None
    queue.hold_queued("other", Selection(ids=[held]), reason="wait")
    first, second = sorted(job.id for job in queue.claim("other", buckets=range(4), limit=2, worker="w"))
    assert findings(queue)["leases"] == Check("leases", Verdict.OK, "each ends within a day and the queue's lease")
    rows(queue, f"UPDATE {{s}}.job SET available_at = {end} WHERE id = %s", first)
    found = findings(queue)["leases"]
    assert found.verdict is Verdict.WARN
    assert found.found.endswith(f"queue other: that of job {first}")
    end_it = re.search("UPDATE .* 'running'", found.cure)
    assert end_it is not None
    rows(queue, f"UPDATE {{s}}.job SET available_at = {end} WHERE id = %s", second)
    assert f"queue other: those of 2 jobs, such as {first}" in findings(queue)["leases"].found
    assert {"name": "leases", "verdict": "warn"}.items() <= next(
        check for check in json.loads(cli.run("doctor", "--json").stdout)["checks"] if check["name"] == "leases"
    ).items()
    rows(queue, end_it.group())
    assert findings(queue)["leases"].found.endswith(f"that of job {second}")
    assert rows(queue, "SELECT id FROM {s}.job WHERE state = 'running' AND available_at <= now()") == [(first,)]


def test_leases_without_an_end_are_found_behind_more_scheduled_jobs_than_are_read(
    queue: SqlQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_checks, "_LEASES", 3)
    made = QueueSpec("other", Work, bucket_count=1)
    queue.create_queue(made)
    queue.enqueue_many(made, [Work(n=n) for n in range(2)])
    endless, distant = (job.id for job in queue.claim("other", limit=2, worker="w"))
    waiting = [queue.enqueue(made, Work(n=n)) for n in range(8)]
    held = [id for id in waiting[:2] if id]
    queue.hold_queued("other", Selection(ids=held), reason="wait")
    rows(queue, "UPDATE {s}.job SET available_at = now() + interval '30 days' WHERE state = 'queued'")
    assert findings(queue)["leases"].verdict is Verdict.OK
    for id, end in ((endless, "'infinity'"), (distant, "now() + interval '20 days'")):
        rows(queue, f"UPDATE {{s}}.job SET available_at = {end} WHERE id = %s", id)
        assert findings(queue)["leases"].found.endswith(f"queue other: that of job {id}")
        rows(queue, "UPDATE {s}.job SET available_at = now() WHERE id = %s", id)
