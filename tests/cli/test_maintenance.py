"""`maintain`, `trim`."""

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.schema.partitions import DAYS_AHEAD
from tests.cli.support import Cli
from tests.support import rows, value


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """Whose partitions are as they were made."""
    return fresh


def _finish_days_ago(queue: SqlQueue, *days: int) -> None:
    for ago in days:
        rows(
            queue,
            "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
            " created_at, finished_at, region, tags, payload) VALUES (gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1,"
            " 1, now(), now(), now() - make_interval(days => %s), 'local', '{{}}', '{{}}')",
            ago,
        )


def _archived(queue: SqlQueue) -> int:
    return int(value(queue, "SELECT count(*) FROM {s}.job_archive"))


def test_maintain_makes_partitions_and_trims(cli: Cli, queue: SqlQueue) -> None:
    cli.run("create", "work", "--retention-days", "0")
    _finish_days_ago(queue, 1, 3, 40, 50)
    first = cli.json("maintain", "--days-ahead", "9")
    assert first["ran"] is True
    assert first["rows_moved"] == 3
    assert len(first["partitions_made"]) == 5
    assert first["partitions_dropped"] == first["busy"] == []
    cli.run("create", "work", "--retention-days", "30")
    second = cli.run("maintain", "--days-ahead", "9").stdout
    assert "created no partition" in second
    assert "dropped 2 partitions, of 20" in second
    assert _archived(queue) == 2
    assert set(cli.json("maintain")) == {
        *("ran", "partitions_made", "rows_moved", "partitions_dropped", "rows_deleted", "events_deleted"),
        *("expired_removed", "batches_swept", "keys_healed", "jobs_moved", "queues_removed", "busy"),
    }


def test_trim_deletes_what_others_keep_the_day_for(cli: Cli, queue: SqlQueue) -> None:
    cli.run("create", "other")
    _finish_days_ago(queue, 1, 5, 6)
    assert cli.json("trim") == {"partitions_dropped": [], "rows_deleted": {}, "events_deleted": {}, "busy": []}
    cli.run("create", "work", "--retention-days", "2")
    assert "deleted 2 rows of queue work" in cli.run("trim", "work").stdout
    assert _archived(queue) == 1
    assert "there is no queue 'nosuch'" in cli.refused(5, "trim", "nosuch")


@pytest.mark.prove
def test_an_archive_in_use_is_left_for_the_next_time(cli: Cli, queue: SqlQueue, url: str, schema: str) -> None:
    _finish_days_ago(queue, 20)
    cli.run("maintain")
    cli.run("create", "work", "--retention-days", "10")
    with psycopg.connect(url) as reader:
        reader.execute(f"SELECT FROM {schema}.job_archive".encode())
        busy = cli.run("trim")
        assert busy.exit_code == 6
        assert "left for the next time, because the archive was in use: 20" in busy.stdout
    assert "dropped the partition of 20" in cli.run("trim").stdout


def test_what_is_refused(cli: Cli) -> None:
    for days in ("-1", "400", "soon"):
        assert "days" in cli.refused(2, "maintain", "--days-ahead", days)


def test_the_help_says_how_many_days_ahead_partitions_are_made(cli: Cli) -> None:
    assert f"Default: {DAYS_AHEAD}." in " ".join(cli.run("maintain", "--help").stdout.replace("│", " ").split())
