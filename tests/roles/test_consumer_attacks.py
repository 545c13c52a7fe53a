"""What a consumer tries with SQL of its own, alone or with a producer's role beside it: what is refused, and what is not."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role, role_name
from dagster_sqlqueue.followers import Callback, Followers, JobEnded
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.results import Results
from tests.roles.support import Staff, dropping_roles, staff_of, url_of
from tests.support import Work, rows, value
from tests.support.armed import armed, wakes

WORK = QueueSpec("work", Work, bucket_count=1)
LIVE = QueueSpec("live", Work, bucket_count=1)
SECRET = "the password is swordfish"


@pytest.fixture(scope="module")
def mill(any_server: str) -> Iterator[Staff]:
    """Users of a schema with a job that is due, one under a lease of the owner's, and one that has ended."""
    schema = f"r_{uuid4().hex[:12]}"
    with dropping_roles(any_server, schema), SqlQueue(any_server, schema=schema) as owner:
        owner.migrate()
        owner.install_roles()
        owner.create_queue(WORK)
        owner.create_queue(LIVE)
        owner.create_queue(QueueSpec("ended", JobEnded))
        owner.enqueue_many(WORK, [Work(n=n) for n in range(3)])
        ended, _ = owner.claim("work", limit=2, worker="w", lease_seconds=600)
        owner.finish([Ending(ended, ArchiveState.FAILED, {"was": SECRET}, SECRET)])
        with staff_of(owner, any_server) as staff:
            yield staff


@pytest.mark.parametrize("which", ["state = 'running'", "state = 'queued'", "true"])
@pytest.mark.parametrize("number", ["lease_no + 1", "lease_no + 2", "lease_no - 1", "0", "9223372036854775807"])
def test_a_lease_number_grows_by_one_when_a_due_job_is_claimed_and_no_otherwise(
    mill: Staff, which: str, number: str
) -> None:
    numbers = "SELECT id, lease_no FROM {s}.job ORDER BY id"
    before = rows(mill.owner, numbers)
    if (which, number) in (("state = 'queued'", "lease_no + 1"), ("state = 'queued'", "0")):
        number = "lease_no + 3"
    with mill.connected(Role.CONSUMER) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege) as refused:
        connection.execute(mill.text(f"UPDATE {{s}}.job SET lease_no = {number} WHERE {which}"))
    assert "lease_no of job" in str(refused.value)
    assert rows(mill.owner, numbers) == before


def test_a_job_is_not_taken_for_one_of_a_batch_to_raise_its_lease_number(mill: Staff) -> None:
    running = "SELECT id, lease_no, batch_id FROM {s}.job WHERE state = 'running'"
    with mill.connected(Role.CONSUMER) as connection, connection.transaction(force_rollback=True):
        connection.execute(mill.text("UPDATE {s}.job SET batch_id = gen_random_uuid() WHERE state = 'running'"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="lease_no of job"), connection.transaction():
            connection.execute(mill.text("UPDATE {s}.job SET lease_no = lease_no + 1 WHERE state = 'running'"))
        connection.execute(mill.text("UPDATE {s}.job SET available_at = 'infinity' WHERE state = 'running'"))
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="lease_no of job"), connection.transaction():
            connection.execute(mill.text("UPDATE {s}.job SET lease_no = lease_no + 1 WHERE state = 'running'"))
    assert [lease for _, lease, _ in rows(mill.owner, running)] == [1]


def test_a_lease_is_taken_over_in_two_steps_as_that_of_a_dead_worker_is(mill: Staff) -> None:
    """Cannot be prevented: consumers end the leases of workers that are dead, and claim what is due."""
    with mill.connected(Role.CONSUMER) as connection, connection.transaction(force_rollback=True):
        for query in (
            "UPDATE {s}.job SET available_at = statement_timestamp() WHERE state = 'running'",
            "UPDATE {s}.job SET lease_no = lease_no + 1 WHERE state = 'running'",
        ):
            assert connection.execute(mill.text(query)).rowcount == 1


_FORGED = (
    "INSERT INTO {s}.job_archive (id, queue, bucket, priority, state, lease_no, attempt, max_attempts, run_at,"
    " created_at, finished_at, region, tags, payload) SELECT gen_random_uuid(), 'work', 0, 0, 'succeeded', 1, 1, 1,"
    " now(), now(), now(), 'local', '{}', '{\"n\": 1}'"
)


@pytest.mark.parametrize(
    "query",
    [
        _FORGED,
        "INSERT INTO {s}.job_archive (id, ended_in) VALUES (gen_random_uuid(), '3')",
        "DELETE FROM {s}.job_archive",
        "UPDATE {s}.job_archive SET state = 'succeeded'",
        "DELETE FROM {s}.job",
        "DELETE FROM {s}.job WHERE state = 'running'",
        "WITH gone AS (DELETE FROM {s}.job RETURNING id) SELECT count(*) FROM gone",
        "TRUNCATE {s}.job",
        "TRUNCATE {s}.job_archive",
    ],
)
def test_a_consumer_neither_forges_the_archive_nor_deletes_jobs(mill: Staff, query: str) -> None:
    before = _both_tables(mill)
    with mill.connected(Role.CONSUMER) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(mill.text(query))
    assert _both_tables(mill) == before


def _both_tables(mill: Staff) -> list[tuple[object, ...]]:
    return rows(
        mill.owner, "SELECT id, state, lease_no FROM {s}.job UNION ALL SELECT id, state, lease_no FROM {s}.job_archive"
    )


@pytest.mark.parametrize(
    "call",
    [
        "SELECT * FROM {s}.succeed_locked(ARRAY(SELECT id FROM {s}.job WHERE state = 'running'), 'me')",
        "SELECT * FROM {s}.end_locked(ARRAY(SELECT id FROM {s}.job WHERE state = 'running'), '{failed}', '{null}', '{x}',"
        " 'me')",
        "SELECT * FROM {s}.succeed_leased(ARRAY(SELECT id FROM {s}.job), 7, true)",
        "SELECT * FROM {s}.end_leased(ARRAY(SELECT id FROM {s}.job WHERE state = 'running'), '{0}', '{failed}', '{null}',"
        " '{x}', true)",
        "SELECT * FROM {s}.end_leased(ARRAY[gen_random_uuid()], '{1}', '{succeeded}', '{null}', '{null}', true)",
    ],
)
def test_the_functions_end_nothing_without_its_fence(mill: Staff, call: str) -> None:
    """A job under a lease does not end by being locked, nor under another lease, nor does one that never was."""
    before = _both_tables(mill)
    with mill.connected(Role.CONSUMER) as connection:
        assert connection.execute(mill.text(call)).fetchall() == []
    assert _both_tables(mill) == before


def test_a_job_ends_as_it_was(mill: Staff) -> None:
    """Cannot be prevented: a consumer ends jobs that are due, and says how. What they were it does not say."""
    with mill.connected(Role.CONSUMER) as connection, connection.transaction(force_rollback=True):
        (due,) = connection.execute(
            mill.text("SELECT id, queue, payload FROM {s}.job WHERE state = 'queued' LIMIT 1")
        ).fetchall()
        call = "SELECT * FROM {s}.end_locked(ARRAY[%s::uuid], '{failed}', '{null}', '{because}', 'me')"
        assert connection.execute(mill.text(call), [due[0]]).fetchall() == [(due[0],)]
        found = connection.execute(
            mill.text("SELECT queue, state, claimed_by FROM {s}.job_archive WHERE id = %s"), [due[0]]
        )
        assert found.fetchall() == [(due[1], "failed", "me")]


@pytest.fixture(scope="module")
def both(mill: Staff, any_server: str) -> Iterator[SqlQueue]:
    """A user who is a producer and a consumer."""
    name = f"{mill.schema}_both"
    roles = sql.SQL(", ").join(sql.Identifier(role_name(mill.schema, role)) for role in (Role.PRODUCER, Role.CONSUMER))
    with psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(sql.Identifier(name), roles))
    with SqlQueue(url_of(any_server, name), schema=mill.schema) as queue:
        yield queue


def _callbacks(queue: SqlQueue, job: UUID) -> list[JobEnded]:
    found = queue.claim("ended", limit=100, worker="w")
    queue.complete(found)
    return [ended for ended in (JobEnded.model_validate_json(one.payload) for one in found) if ended.job_id == job]


def test_who_follows_an_ended_job_does_not_get_what_it_may_not_read(
    mill: Staff, both: SqlQueue, any_server: str
) -> None:
    job = value(mill.owner, "SELECT id FROM {s}.job_archive WHERE state = 'failed'")
    assert not Followers(both).follow(job, Callback("ended"))
    (end,) = _callbacks(both, job)
    assert (end.state, end.result, end.error, end.withheld) == (ArchiveState.FAILED, None, None, True)
    with psycopg.connect(url_of(any_server, f"{mill.schema}_both")) as connection:
        ended_at = value(mill.owner, "SELECT finished_at FROM {s}.job_archive WHERE id = %s", job)
        for query in (
            "SELECT {s}.notify_followers(%s, %s, true)",
            "SELECT * FROM {s}.job(%s) WHERE %s IS NOT NULL",
            "SELECT result FROM {s}.job_archive WHERE id = %s AND finished_at = %s",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                connection.execute(mill.text(query), (job, ended_at))


def test_an_operator_who_follows_an_ended_job_gets_everything(mill: Staff) -> None:
    job = value(mill.owner, "SELECT id FROM {s}.job_archive WHERE state = 'failed'")
    assert not Followers(mill.users[Role.OPERATOR]).follow(job, Callback("ended", context={"by": "the operator"}))
    (end,) = _callbacks(mill.owner, job)
    assert (end.result, end.error, end.withheld) == ({"was": SECRET}, SECRET, False)


def test_nobody_takes_the_result_away_from_who_was_to_be_notified_and_was_not(mill: Staff, both: SqlQueue) -> None:
    """A follower that was left behind, as by a lost transaction, is notified in full, whoever has that done."""
    job, ended_at = rows(mill.owner, "SELECT id, finished_at FROM {s}.job_archive WHERE state = 'failed'")[0]
    rows(
        mill.owner,
        "INSERT INTO {s}.follower (id, job_id, states, queue) VALUES (gen_random_uuid(), %s, '{{failed}}', 'ended')",
        job,
    )
    both.database.run("notify_followers", {"ids": [job], "finished_ats": [ended_at]})
    (end,) = _callbacks(mill.owner, job)
    assert (end.result, end.withheld) == ({"was": SECRET}, False)


@pytest.mark.parametrize("by", ["maintenance", "another who follows"])
def test_who_has_others_notify_its_follower_of_an_ended_job_does_not_get_the_result(
    mill: Staff, both: SqlQueue, any_server: str, by: str
) -> None:
    job = value(mill.owner, "SELECT id FROM {s}.job_archive WHERE state = 'failed'")
    follower = (
        "INSERT INTO {s}.follower (id, job_id, states, queue) VALUES (gen_random_uuid(), %s, '{failed}', 'ended')"
    )
    with psycopg.connect(url_of(any_server, f"{mill.schema}_both"), autocommit=True) as connection:
        connection.execute(mill.text(follower), (job,))
    if by == "maintenance":
        mill.users[Role.OPERATOR].maintain()
        ends = _callbacks(mill.owner, job)
    else:
        Followers(mill.users[Role.OPERATOR]).follow(job, Callback("ended", context={"by": "another"}))
        ends = [end for end in _callbacks(mill.owner, job) if end.context is None]
    (end,) = ends
    assert (end.result, end.error, end.withheld) == (None, None, True)


def test_who_follows_a_live_job_gets_its_result(mill: Staff, both: SqlQueue) -> None:
    """Cannot be prevented: it is what following is for, and no job says whose it is."""
    job = mill.owner.enqueue(LIVE, Work(n=9))
    assert job
    assert Followers(both).follow(job, Callback("ended"))
    (held,) = [one for one in mill.owner.claim("live", limit=1, worker="w") if one.id == job]
    mill.owner.finish([Ending(held, ArchiveState.SUCCEEDED, {"is": SECRET}, None)])
    (end,) = _callbacks(both, job)
    assert end.result == {"is": SECRET}


def test_replies_do_not_go_before_their_time(mill: Staff) -> None:
    """The consumer of a reply queue says that it is in use, and not until when."""
    with Results(mill.owner).reply_queue(Work, ttl_seconds=86_400) as replies:
        mill.owner.enqueue_many(replies.spec, [Work(n=n) for n in range(3)])
        before = value(mill.owner, "SELECT expires_at FROM {s}.reply_queue")
        with mill.connected(Role.CONSUMER) as connection:
            for query in (
                "UPDATE {s}.reply_queue SET expires_at = '2020-01-01'",
                "UPDATE {s}.reply_queue SET ttl_seconds = 0.001",
                "DELETE FROM {s}.reply_queue",
                "INSERT INTO {s}.reply_queue (queue, ttl_seconds, expires_at) VALUES ('work', 1, '2020-01-01')",
                "SELECT {s}.remove_reply_queue(queue, false) FROM {s}.reply_queue",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(mill.text(query))
            for call in ("renew_reply_queue", "remove_expired_reply_queue"):
                connection.execute(mill.text(f"SELECT {{s}}.{call}(queue) FROM {{s}}.reply_queue"))
            assert connection.execute(mill.text("SELECT {s}.renew_reply_queue('work')")).fetchall() == []
        assert value(mill.owner, "SELECT expires_at FROM {s}.reply_queue") > before
        assert value(mill.owner, "SELECT count(*) FROM {s}.job WHERE queue = %s", replies.name) == 3


def test_a_consumer_has_himself_woken_and_nobody_else(mill: Staff, any_server: str) -> None:
    tried = [
        "SELECT * FROM {s}.armed_waiter",
        "DELETE FROM {s}.armed_waiter",
        "UPDATE {s}.armed_long_ago SET expires_at = 'infinity'",
        "INSERT INTO {s}.armed_waiter (queue, expires_at, backend, choosy) VALUES ('work', 'infinity', 1, false)",
        "SELECT {s}.wake_waiter('work', NULL)",
    ]
    left = "SELECT count(*) FROM {s}.armed_waiter"
    with armed(mill.owner, any_server, 1) as sessions:
        with psycopg.connect(url_of(any_server, mill.user(Role.CONSUMER)), autocommit=True) as connection:

            def run(query: str) -> None:
                connection.execute(sql.SQL(query).format(s=sql.Identifier(mill.schema)))  # type: ignore[arg-type]

            for query in tried:
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    run(query)
            # What is another session's stays: it takes neither its row nor those that have not expired.
            run("SELECT {s}.disarm_waiter('work')")
            run("DELETE FROM {s}.armed_long_ago")
            assert value(mill.owner, left) == 1
            run("SELECT {s}.arm_waiter('work', NULL, false, 60)")
            run("SELECT {s}.arm_waiter('work', NULL, false, 60)")
            assert value(mill.owner, left) == 2
            run("SELECT {s}.disarm_waiter('work')")
        mill.owner.enqueue(WORK, Work(n=1))
        assert wakes(sessions) == [1]
