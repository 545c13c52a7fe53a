"""Who reads with a user that may not: what the error says when the frame is planned, or by the first task at the latest."""

from collections.abc import Iterator
from itertools import product
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.errors import AccessRefused
from dagster_sqlqueue.spark.batch_reader import Reader
from dagster_sqlqueue.spark.options import FORMAT
from dagster_sqlqueue.spark.source import register_source
from tests.gate.patience import sized
from tests.roles.support import Staff, dropping_roles, staff_of, url_of
from tests.spark.support import Done, archive
from tests.support import Work, rows

SHARES_A_SCHEMA = True

ASKED = StructType([StructField("payload", StringType())])


@pytest.fixture(scope="module")
def staff(url: str) -> Iterator[Staff]:
    """A queue with jobs in three buckets, and one in its archive; a user of each role, and one, `nobody`, without any."""
    schema = f"r_{uuid4().hex[:12]}"
    with dropping_roles(url, schema), SqlQueue(url, schema=schema) as owner:
        owner.migrate()
        owner.install_roles()
        spec = QueueSpec("work", Work)
        owner.create_queue(spec)
        owner.enqueue_many(spec, [Work(n=n) for n in range(50)])
        archive(owner, [Done()])
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(f"{schema}_nobody")))
        with staff_of(owner, url) as staff:
            yield staff
        # What keeps a snapshot would keep the tables, too.
        ours = schema + r"\_%"
        rows(owner, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename LIKE %s", ours)


def read(staff: Staff, user: str, **options: str) -> int:
    """How many rows that user reads, as the driver and then a task do it."""
    task = Reader(url_of(staff.url, user), staff.schema, {"queue": "work", **options}, ASKED)
    return sum(batch.num_rows for share in task.partitions() for batch in task.read(share))


READS: dict[str, dict[str, str]] = {
    "archive": {},
    "archive of one moment": {"consistent": "snapshot"},
    "live": {"state": "live", "target_rows": "1"},
    "live without a snapshot": {"state": "live", "consistent": "as_of"},
}
MAY = {
    "archive": {Role.OPERATOR, Role.OBSERVER},
    "live": {Role.CONSUMER, Role.OPERATOR, Role.OBSERVER},
}


IN_ALL_RUNS = {
    (Role.OBSERVER, "archive"),
    (Role.PRODUCER, "archive of one moment"),
    (Role.CONSUMER, "live"),
    ("nobody", "live without a snapshot"),
}


@pytest.mark.parametrize(
    ("role", "what"),
    [
        pytest.param(*asked, marks=() if asked in IN_ALL_RUNS else pytest.mark.prove)
        for asked in product([*Role, "nobody"], READS)
    ],
)
def test_who_reads_what(staff: Staff, role: str, what: str) -> None:
    may = MAY[what.split()[0]]
    user = f"{staff.schema}_nobody" if role == "nobody" else staff.user(Role(role))
    if role in may:
        assert read(staff, user, **READS[what]) == (50 if what.startswith("live") else 1)
        return
    with pytest.raises(AccessRefused) as caught:
        read(staff, user, **READS[what])
    message = str(caught.value)
    assert message.startswith(f"user {user!r} may not do that in schema {staff.schema!r} (")
    assert "permission denied for" in message
    assert f'"{staff.schema}_observer"' in message
    assert f'TO "{user}"' in message
    assert "docs/roles.md" in message


def test_spark_says_so(staff: Staff, session: SparkSession) -> None:
    register_source(session, url_of(staff.url, staff.user(Role.PRODUCER)), staff.schema)
    for options in list(READS.values())[: sized(1, 4)]:
        with pytest.raises(
            PySparkException, match=rf"AccessRefused: user '{staff.user(Role.PRODUCER)}' may not do that"
        ):
            session.read.format(FORMAT).options(queue="work", **options).load().select("payload").collect()
