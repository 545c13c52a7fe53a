"""What reads jobs shows odd ones as well: Python, the command line, sensors' heads and statistics."""

import json
from collections.abc import Iterator

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.doctor import examine
from dagster_sqlqueue.doctor.server_checks import Check, Verdict
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.people.redaction import discreet_tasks
from dagster_sqlqueue.queue.selection import Selection
from dagster_sqlqueue.results import Results
from tests.cli.support import Cli
from tests.gate.patience import sized
from tests.support import Work, rows
from tests.support.odd_rows import ODD, bring_back, constraints, fill, loosen

STRAYS = 5
EVERY = Selection(all=True)


@pytest.fixture
def odd(queue: SqlQueue, spec: QueueSpec[Work]) -> Iterator[SqlQueue]:
    """With one of each, beside good ones, in tables without constraints."""
    found = constraints(queue)
    loosen(queue, found)
    fill(queue, spec, list(ODD))
    # The schema is the module's, and its queue names what is not to be shown.
    rows(queue, "INSERT INTO {s}.sensitive_field VALUES ('work', 'secret')")
    yield queue
    rows(queue, "DELETE FROM {s}.job")
    bring_back(queue, found)


def end_all(queue: SqlQueue) -> None:
    """All of them in the archive, as dead letters."""
    rows(
        queue,
        "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
        " created_at, finished_at, region, timeout_seconds, backoff, tags, payload, result, error, ordering_key)"
        " SELECT id, queue, bucket, priority, 'failed', lease_no, attempt, max_attempts, run_at, created_at, now(), region,"
        " timeout_seconds, backoff, tags, payload, payload, 'x', ordering_key FROM {s}.job",
    )
    rows(queue, "DELETE FROM {s}.job")


def test_live_ones_are_listed_and_shown(odd: SqlQueue, cli: Cli) -> None:
    everything = len(ODD) + 20
    ids = [str(job) for (job,) in rows(odd, "SELECT id FROM {s}.job WHERE NOT tags @> '{{good}}'")]
    assert len(odd.jobs("work", EVERY, limit=1_000)) >= everything - STRAYS
    assert len(odd.peek("work", limit=1_000)) >= everything - STRAYS
    assert len(cli.json("list", "work", "--limit", "1000")) >= everything - STRAYS
    cli.run("list", "work", "--limit", "1000")
    assert odd.peek_heads("work")
    assert odd.stats("work").ready >= everything - STRAYS
    for command in (["stats"], ["stats", "work"], ["queues"], ["peek", "work"], ["doctor"]):
        cli.run(*command)
        json.loads(cli.run(*command, "--json").stdout)
    with Results(odd) as results:
        assert len(results.outcomes(ids)) == len(ids)
    for job in ids[:: sized(9, 1)]:
        assert cli.json("show", job)["id"] == job
        cli.run("show", job)
        assert odd.explain(job)


def test_ended_ones_are_listed_shown_and_brought_back(odd: SqlQueue, cli: Cli) -> None:
    end_all(odd)
    everything = len(ODD) + 20
    ids = [str(job) for (job,) in rows(odd, "SELECT id FROM {s}.job_archive WHERE NOT tags @> '{{good}}'")]
    assert len(cli.json("list", "work", "--state", "failed", "--limit", "1000")) == everything
    assert len(cli.json("dead", "work", "--limit", "1000")) == everything
    cli.run("dead", "work", "--limit", "1000")
    for job in ids[:: sized(9, 1)]:
        assert cli.json("show", job)["id"] == job
        cli.run("show", job)
    with Results(odd) as results:
        assert {outcome.state for outcome in results.outcomes(ids).values()} == {"failed"}
    assert len(odd.redrive("work", EVERY).changed) == everything


@pytest.mark.prove
def test_they_can_be_held_released_and_worked_on_by_people(odd: SqlQueue, cli: Cli) -> None:
    assert odd.hold_queued("work", EVERY, "look").changed
    assert len(cli.json("list", "work", "--state", "held", "--limit", "1000")) >= len(ODD)
    cli.run("people", "adopt", "work", "--by", "boss")
    tasks = cli.json("people", "tasks", "work", "--limit", "1000")
    assert len(tasks) >= len(ODD)
    cli.run("people", "tasks", "work", "--limit", "1000")
    assert len(discreet_tasks(odd, HumanWork(odd).tasks("work", limit=1_000))) == len(tasks)
    assert odd.release_held("work", EVERY).changed
    assert odd.reschedule("work", EVERY, 60).changed
    assert odd.reprioritise("work", EVERY, 3).changed
    assert odd.cancel("work", EVERY).changed


def test_jobs_where_nobody_looks_are_named_by_doctor(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    def found() -> Check:
        (check,) = [check for check in examine(queue.database) if check.name == "strays"]
        return check

    queue.enqueue_many(spec, [Work(n=n) for n in range(3)])
    assert found() == Check("strays", Verdict.OK, "each job is in a bucket of its queue")
    rows(queue, "UPDATE {s}.job SET bucket = 900")
    assert found().verdict is Verdict.WARN
    assert found().found == (
        "jobs are where sensors and consumers of some buckets do not search, in buckets that their queue never had, or have"
        " priorities that are not recorded: 3 of queue work"
    )
    assert "sqlqueue maintain" in found().cure
    assert "moved to buckets and priorities that are claimed: 3 jobs\n" in cli.run("maintain").stdout
    assert found().verdict is Verdict.OK
    assert "moved to buckets" not in cli.run("maintain").stdout
