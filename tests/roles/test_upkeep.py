"""A consumer maintains what is due, and removes nothing that is to be kept."""

from datetime import date, timedelta

import psycopg
import pytest

from dagster_sqlqueue import Consumer, Done, QueueSpec
from dagster_sqlqueue.consumer import upkeep
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.queue.maintenance import Maintenance
from tests.gate.patience import PATIENCE
from tests.roles.support import Staff
from tests.support import Work, rows, value
from tests.support.archived import archive


def _today(staff: Staff) -> date:
    """The day, in UTC, by the database's clock."""
    day: date = value(staff.owner, "SELECT CAST(timezone('UTC', now()) AS date)")
    return day


def test_a_consumer_does_what_is_due(shared: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_checked_at", {})
    monkeypatch.setattr(upkeep, "_LEAVE_SECONDS", PATIENCE)
    owner, consumer, today = shared.owner, shared.users[Role.CONSUMER], _today(shared)
    spec = QueueSpec("upkept", Work, retention_days=3)
    owner.create_queue(spec)
    for back in (2, 5):
        archive(owner, today - timedelta(days=back), name="upkept")
    last = today + timedelta(days=7)
    rows(owner, f"DROP TABLE {{s}}.job_archive_{last:%Y%m%d}")
    rows(owner, "INSERT INTO {s}.stale_write SELECT 'upkept', CAST(now() AS date) - 92, 1")
    rows(owner, "UPDATE {s}.maintenance SET due_at = now()")
    Consumer(consumer, spec, lambda job: Done()).drain()
    assert value(owner, "SELECT done_at IS NOT NULL FROM {s}.maintenance")
    kept = rows(
        owner, "SELECT DISTINCT CAST(timezone('UTC', finished_at) AS date) FROM {s}.job_archive WHERE queue = 'upkept'"
    )
    assert kept == [(today - timedelta(days=2),)]
    assert value(owner, "SELECT count(*) FROM {s}.stale_write WHERE queue = 'upkept'") == 0
    assert value(owner, f"SELECT count(*) FROM {{s}}.job_archive_{last:%Y%m%d}") == 0
    assert not Maintenance(consumer.catalog).maintain_if_due(stopping=lambda: False).ran


@pytest.mark.parametrize(
    ("attempt", "changed"),
    [
        ("DELETE FROM {s}.group_long_ago", 0),
        ("SELECT 1 WHERE {s}.trim_archive('work', 1000) > 0", 0),
        ("SELECT 1 FROM {s}.trim_archive_of_no_queue(1000) WHERE queue = 'work'", 0),
        ("SELECT 1 FROM {s}.trim_events('work', '-infinity', gen_random_uuid(), 0, 1000) WHERE deleted > 0", 0),
        ("SELECT 1 WHERE {s}.keep_archive_day('2001-01-01') IS NOT NULL", 0),
        ("SELECT 1 WHERE {s}.keep_archive_day(CURRENT_DATE + 30) IS NOT NULL", 0),
        ("SELECT 1 WHERE {s}.drop_archive_partition(CURRENT_DATE, NULL)", 0),
        ("SELECT {s}.begin_archive_partition('2001-01-01')", None),
        ("UPDATE {s}.maintenance SET due_at = '2100-01-01'", None),
        ("DELETE FROM {s}.job_archive", None),
        ("DELETE FROM {s}.job_event", None),
        ("SELECT {s}.force_maintenance('me')", None),
    ],
)
def test_nothing_that_is_to_be_kept_can_be_removed(shared: Staff, attempt: str, changed: int | None) -> None:
    archive(shared.owner, _today(shared) - timedelta(days=1), name="work")
    with shared.connected(Role.CONSUMER) as connection:
        if changed is None:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(shared.text(attempt))
        else:
            assert connection.execute(shared.text(attempt)).rowcount == changed
