"""What an operator tries with dates that name a day which is not the one they say, on a connection of its own."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from tests.roles.support import Staff, dropping_roles, staff_of
from tests.support import Work, rows, value

_DAYS = (
    "SELECT c.relname, pg_get_expr(c.relpartbound, c.oid) FROM pg_inherits AS i JOIN pg_class AS c ON c.oid = i.inhrelid"
    " WHERE i.inhparent = '{s}.job_archive'::regclass"
    " UNION SELECT c.relname, 'no partition' FROM pg_class AS c"
    " WHERE c.relnamespace = '{s}'::regnamespace AND c.relname ~ '^job_archive_' AND NOT c.relispartition"
    " AND c.relkind = 'r' ORDER BY 1"
)


@pytest.fixture(scope="module")
def archive(any_server: str) -> Iterator[Staff]:
    """Users of a schema in which two jobs ended today, and are kept for one day."""
    schema = f"r_{uuid4().hex[:12]}"
    spec = QueueSpec("work", Work, bucket_count=1, retention_days=1)
    with dropping_roles(any_server, schema), SqlQueue(any_server, schema=schema) as owner:
        owner.migrate()
        owner.install_roles()
        owner.create_queue(spec)
        owner.enqueue_many(spec, [Work(n=1), Work(n=2)])
        owner.complete(owner.claim("work", limit=2, worker="w"))
        with staff_of(owner, any_server) as staff:
            yield staff


def _today() -> datetime:
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def _day(ahead: int, era: str = "") -> str:
    return f"{_today() + timedelta(days=ahead):%Y-%m-%d}{era}"


@pytest.mark.parametrize("odd", ["BC", "BC of a day that is to come", "infinity", "-infinity", "10000-01-01", None])
@pytest.mark.parametrize("name", ["drop", "begin", "attach", "make", "is over"])
def test_a_date_that_is_no_day_of_the_archive_is_refused(archive: Staff, name: str, odd: str | None) -> None:
    day = {"BC": _day(0, " BC"), "BC of a day that is to come": _day(30, " BC")}.get(odd or "", odd)
    before = rows(archive.owner, _DAYS)
    query = {
        "drop": "SELECT {s}.drop_archive_partition(%s::date, NULL)",
        "begin": "SELECT {s}.begin_archive_partition(%s::date)",
        "attach": "SELECT {s}.attach_archive_partition(%s::date)",
        "make": "SELECT {s}.make_archive_partition(%s::date)",
        "is over": "SELECT {s}.archive_day_is_over(%s::date, NULL)",
    }[name]
    out_of_range = pytest.raises(psycopg.errors.DatetimeFieldOverflow, match="years 1 to 9999")
    with archive.connected(Role.OPERATOR) as connection, out_of_range:
        connection.execute(archive.text(query), (day,))
    assert rows(archive.owner, _DAYS) == before
    assert value(archive.owner, "SELECT count(*) FROM {s}.job_archive") == 2


@pytest.mark.parametrize("ahead", [0, 1, 7])
@pytest.mark.parametrize("only_queue", [None, "work", "nobody"])
def test_a_day_that_is_not_over_is_kept(archive: Staff, ahead: int, only_queue: str | None) -> None:
    before = rows(archive.owner, _DAYS)
    with archive.connected(Role.OPERATOR) as connection:
        for style in ("ISO, YMD", "SQL, DMY", "German"):
            connection.execute(f"SET datestyle = '{style}'".encode())
            query = archive.text("SELECT {s}.drop_archive_partition(%s, %s)")
            found = connection.execute(query, (_today().date() + timedelta(days=ahead), only_queue)).fetchone()
            assert found == (False,)
    assert rows(archive.owner, _DAYS) == before


@pytest.mark.parametrize("number", [0, 1])
def test_how_a_session_writes_times_does_not_move_the_bounds_of_a_day(archive: Staff, number: int) -> None:
    """A moment that is written with the zone's abbreviation is read as that of another zone of the same one."""
    day = _today().date() + timedelta(days=40 + number)
    with archive.connected(Role.OPERATOR) as connection:
        connection.execute("SET datestyle = 'SQL, DMY'")
        connection.execute("SET timezone = 'Asia/Kolkata'" if number else "SET timezone = 'America/Havana'")
        assert connection.execute(archive.text("SELECT {s}.make_archive_partition(%s)"), (day,)).fetchone()
    with psycopg.connect(archive.url, options="-c timezone=UTC") as connection:
        bounds = dict(connection.execute(archive.text(_DAYS)).fetchall())
    assert bounds[f"job_archive_{day:%Y%m%d}"] == (
        f"FOR VALUES FROM ('{day} 00:00:00+00') TO ('{day + timedelta(days=1)} 00:00:00+00')"
    )
