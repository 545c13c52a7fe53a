"""What somebody tries with SQL of its own, on a connection that has one role."""

from collections.abc import Iterator
from uuid import uuid4

import psycopg
import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from tests.roles.support import Staff, dropping_roles, relations, staff_of
from tests.support import Work, rows, value

SECRET = "the password is swordfish"


@pytest.fixture(scope="module")
def secret(any_server: str) -> Iterator[Staff]:
    """A waiting, a running, a held and an ended job, each with the same secret. Left as it is by every test."""
    schema = f"r_{uuid4().hex[:12]}"
    spec = QueueSpec("work", Work, bucket_count=4)
    with dropping_roles(any_server, schema), SqlQueue(any_server, schema=schema) as owner:
        owner.migrate()
        owner.install_roles()
        owner.create_queue(spec)
        _lay(owner, spec)
        with staff_of(owner, any_server) as staff:
            yield staff


def _lay(owner: SqlQueue, spec: QueueSpec[Work]) -> None:
    for n, key in enumerate(("ended", "running", "held", "waiting")):
        owner.enqueue(spec, NewJob(Work(n=n, note=SECRET), unique_key=key))
    jobs = {
        job.unique_key: job for job in owner.claim("work", limit=4, buckets=range(4), worker="w", lease_seconds=600)
    }
    owner.finish([Ending(jobs["ended"], ArchiveState.FAILED, {"was": SECRET}, SECRET)])
    owner.hold([(jobs["held"], SECRET)])
    owner.release([jobs["waiting"]])
    rows(owner, "ANALYZE {s}.job")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT payload FROM {s}.job",
        "SELECT * FROM {s}.job",
        "SELECT j FROM {s}.job AS j",
        "SELECT to_jsonb(j) FROM {s}.job AS j",
        "SELECT id FROM {s}.job AS j WHERE j.payload ->> 'note' LIKE 'the password%'",
        "SELECT id FROM {s}.job ORDER BY payload",
        "SELECT count(payload) FROM {s}.job",
        "SELECT error FROM {s}.job",
        "SELECT tags FROM {s}.job",
        "SELECT ctid, xmin FROM {s}.job WHERE payload IS NOT NULL",
        "SELECT payload FROM {s}.job_archive",
        "SELECT result FROM {s}.job_archive",
        "SELECT error FROM {s}.job_archive",
        "SELECT state FROM {s}.job_archive",
        "SELECT payload FROM {s}.job_archive_default",
        "SELECT payload FROM {s}.job_all",
        "SELECT * FROM {s}.queue_stats",
        "SELECT * FROM {s}.stats_of_queue('work')",
        "SELECT payload FROM {s}.replaceable_job",
        "SELECT tags FROM {s}.replaceable_job",
        "SELECT payload FROM {s}.schedule",
        "SELECT result FROM {s}.human_task",
        "SELECT details FROM {s}.job_event",
        "SELECT output FROM {s}.batch",
        "TABLE {s}.job",
        "COPY {s}.job TO STDOUT",
        "COPY (SELECT payload FROM {s}.job) TO STDOUT",
        "UPDATE {s}.job SET payload = '{}'",
        "UPDATE {s}.job SET available_at = now()",
        "DELETE FROM {s}.job",
        "DELETE FROM {s}.job_archive",
        "DELETE FROM {s}.job_replaced",
        "DELETE FROM {s}.replaceable_job",
        "UPDATE {s}.job SET unique_until_claim = true",
        "UPDATE {s}.taken_unique_key SET unique_key = NULL",
        "DELETE FROM {s}.taken_unique_key",
        "UPDATE {s}.replaceable_job SET priority = 9 RETURNING payload",
        "UPDATE {s}.replaceable_job SET tags = ARRAY[payload ->> 'note']",
        "UPDATE {s}.replaceable_job SET priority = 9 WHERE payload ->> 'note' LIKE 'the%'",
        "UPDATE {s}.replaceable_job SET unique_key = error",
        "INSERT INTO {s}.replaceable_job (id) VALUES (gen_random_uuid())",
        "DELETE FROM {s}.new_job AS n USING {s}.job AS j WHERE n.id = j.id AND j.payload IS NOT NULL",
        "INSERT INTO {s}.job ({c}) {v} RETURNING payload",
        "INSERT INTO {s}.job ({c}) {v} RETURNING *",
        "INSERT INTO {s}.job ({c}) {v} ON CONFLICT (id) DO UPDATE SET payload = EXCLUDED.payload",
        "INSERT INTO {s}.job AS j ({c}) {v} ON CONFLICT (id) DO UPDATE SET tags = ARRAY[j.payload ->> 'note']",
        "INSERT INTO {s}.job AS j ({c}) {v} ON CONFLICT DO NOTHING RETURNING (SELECT max(payload::text) FROM {s}.job)",
        "INSERT INTO {s}.job ({c}, state) {v}, 'running'",
        "INSERT INTO {s}.job ({c}, lease_no) {v}, 7",
        "INSERT INTO {s}.job ({c}, created_at) {v}, now()",
        "INSERT INTO {s}.job_archive (id) VALUES (gen_random_uuid())",
        "MERGE INTO {s}.job AS j USING (SELECT 1) AS x ON true WHEN MATCHED THEN DELETE",
        "TRUNCATE {s}.job",
        "BEGIN; LOCK TABLE {s}.job IN SHARE MODE",
        "CREATE TRIGGER spy BEFORE INSERT ON {s}.job FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "CREATE TABLE {s}.mine (n integer)",
        "CREATE FUNCTION {s}.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "ALTER TABLE {s}.job DISABLE TRIGGER ALL",
        "SELECT setval('{s}.job_order', 1)",
        "SELECT last_value FROM {s}.job_order",
        "UPDATE {s}.queue SET paused_at = now()",
        "SELECT {s}.begin_archive_partition('2020-01-01')",
        "SELECT {s}.make_archive_partition('2020-01-01')",
        "SELECT {s}.drop_archive_partition('2020-01-01', NULL)",
    ],
)
def test_a_producer_reads_nothing_back_and_harms_nobody(secret: Staff, query: str) -> None:
    columns = "id, queue, bucket, priority, available_at, run_at, max_attempts, payload"
    taken = value(secret.owner, "SELECT min(id::text) FROM {s}.job")
    values = f"SELECT '{taken}'::uuid, 'work', 0, 0, now(), now(), 1, '{{}}'::jsonb"
    query = query.replace("{c}", columns).replace("{v}", values)
    with secret.connected(Role.PRODUCER) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(secret.text(query))


def test_a_producer_finds_no_payload_in_the_statistics(secret: Staff) -> None:
    query = "SELECT attname FROM pg_stats WHERE schemaname = %s AND tablename = 'job'"
    with secret.connected(Role.PRODUCER) as connection:
        seen = {name for (name,) in connection.execute(query, (secret.schema,))}
    assert "queue" in seen
    assert not seen & {"payload", "error", "tags", "claimed_by"}


def test_a_producer_replaces_what_waits_and_takes_back_what_is_its_own(secret: Staff, spec: QueueSpec[Work]) -> None:
    others = "SELECT j::text FROM {s}.job AS j WHERE unique_key <> 'waiting' ORDER BY id"
    before = rows(secret.owner, others)
    with secret.connected(Role.PRODUCER) as connection, connection.transaction(force_rollback=True):
        assert connection.execute(secret.text("UPDATE {s}.replaceable_job SET payload = '{}'")).rowcount == 1
        assert connection.execute(secret.text("DELETE FROM {s}.new_job")).rowcount == 0
        secret.users[Role.PRODUCER].enqueue(spec, Work(n=9), connection=connection)
        assert connection.execute(secret.text("DELETE FROM {s}.new_job")).rowcount == 1
    assert rows(secret.owner, others) == before


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO {s}.job (id) VALUES (gen_random_uuid())",
        "UPDATE {s}.job SET payload = '{}'",
        "UPDATE {s}.job SET queue = 'other'",
        "UPDATE {s}.job SET unique_until_claim = true",
        "DELETE FROM {s}.taken_unique_key",
        "UPDATE {s}.job SET max_attempts = 99",
        "UPDATE {s}.queue SET max_running = NULL",
        "UPDATE {s}.bucket SET region = 'mine'",
        "DELETE FROM {s}.job_archive",
        "UPDATE {s}.job_archive SET state = 'succeeded'",
        "SELECT payload FROM {s}.job_archive",
        "SELECT nextval('{s}.job_order')",
        "DELETE FROM {s}.sensitive_field",
        "INSERT INTO {s}.job_event (job_id) VALUES (gen_random_uuid())",
        "UPDATE {s}.automation_rule SET automatic_percent = 100",
        "TRUNCATE {s}.job",
        "SELECT {s}.make_archive_partition('2020-01-01')",
    ],
)
def test_a_consumer_leaves_what_jobs_are_and_what_has_been(secret: Staff, query: str) -> None:
    with secret.connected(Role.CONSUMER) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(secret.text(query))


@pytest.mark.parametrize(
    "query",
    [
        "UPDATE {s}.job SET lease_no = 1",
        "UPDATE {s}.job SET payload = '{}'",
        "UPDATE {s}.job_archive SET state = 'succeeded'",
        "UPDATE {s}.job_event SET actor = 'somebody else'",
        "DELETE FROM {s}.job_event",
        "DELETE FROM {s}.queue",
        "DELETE FROM {s}.sensitive_field",
        "UPDATE {s}.schema_version SET version = 1",
        "TRUNCATE {s}.job_archive",
        "DROP TABLE {s}.job_archive_default",
        "ALTER TABLE {s}.job_archive DETACH PARTITION {s}.job_archive_default",
    ],
)
def test_an_operator_forges_no_lease_and_no_history(secret: Staff, query: str) -> None:
    with secret.connected(Role.OPERATOR) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(secret.text(query))


def _everything(staff: Staff) -> list[tuple[object, ...]]:
    return [
        (
            name,
            *rows(
                staff.owner,
                f"SELECT md5(COALESCE(string_agg(t::text, ' ' ORDER BY t::text), '')) FROM {{s}}.{name} AS t",
            ),
        )
        for name in sorted({name for name, _ in relations(staff)} - {"queue_stats", "bucket_heads"})
    ]


def test_an_observer_changes_no_row_of_any_table(secret: Staff) -> None:
    before = _everything(secret)
    tried = 0
    with secret.connected(Role.OBSERVER) as connection:
        for name, column in relations(secret):
            for query in (
                f'INSERT INTO {{s}}.{name} ("{column}") VALUES (NULL)',
                f'UPDATE {{s}}.{name} SET "{column}" = "{column}"',
                f"DELETE FROM {{s}}.{name}",
                f"TRUNCATE {{s}}.{name}",
                f"SELECT 1 FROM {{s}}.{name} FOR UPDATE",
                f"SELECT 1 FROM {{s}}.{name} FOR KEY SHARE",
                f"LOCK TABLE {{s}}.{name} IN ROW EXCLUSIVE MODE",
                f"DROP TABLE {{s}}.{name}",
            ):
                with pytest.raises((psycopg.errors.InsufficientPrivilege, *_NO_SUCH_THING)), connection.transaction():
                    connection.execute(secret.text(query))
                tried += 1
    assert tried > 200
    assert _everything(secret) == before


_NO_SUCH_THING = (
    psycopg.errors.WrongObjectType,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.FeatureNotSupported,
)
"""What a view is not for is refused before rights are looked at."""


@pytest.mark.parametrize(
    "query",
    [
        "SELECT nextval('{s}.job_order')",
        "SELECT setval('{s}.job_order', 1)",
        "SELECT {s}.make_archive_partition('2020-01-01')",
        "SELECT {s}.begin_archive_partition('2020-01-01')",
        "SELECT {s}.drop_archive_partition('2020-01-01', NULL)",
        "COPY {s}.job FROM STDIN",
        "CREATE TABLE {s}.mine (n integer)",
        "CREATE INDEX ON {s}.job (state)",
        "ALTER TABLE {s}.job ADD COLUMN mine integer",
        "COMMENT ON TABLE {s}.job IS 'mine'",
        "WITH gone AS (DELETE FROM {s}.job RETURNING id) SELECT * FROM gone",
    ],
)
def test_an_observer_calls_nothing_that_changes_anything(secret: Staff, query: str) -> None:
    with secret.connected(Role.OBSERVER) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(secret.text(query))


def test_an_observer_passes_nothing_on(secret: Staff) -> None:
    """Without a right to grant, PostgreSQL warns, and grants nothing."""
    with secret.connected(Role.OBSERVER) as connection:
        connection.execute(secret.text("GRANT SELECT ON {s}.job TO PUBLIC"))
    assert value(secret.owner, "SELECT has_table_privilege('public', '{s}.job', 'SELECT')") is False


def test_an_observer_reads_everything(secret: Staff) -> None:
    with secret.connected(Role.OBSERVER) as connection:
        text = secret.text("SELECT count(*) FROM {s}.job_all WHERE payload ->> 'note' = %s")
        assert connection.execute(text, (SECRET,)).fetchone() == (4,)
