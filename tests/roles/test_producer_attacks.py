"""What a producer tries with SQL of its own against jobs that wait for their turn, and against those who follow jobs."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role, role_name
from dagster_sqlqueue.followers import Callback, Followers, JobEnded
from tests.roles.support import Staff, dropping_roles, staff_of, url_of
from tests.support import Work, rows, value
from tests.support.armed import armed, wakes

ORDERED = QueueSpec("in_turns", Work, bucket_count=1, ordered=True)
WORK = QueueSpec("work", Work, bucket_count=1)


@pytest.fixture(scope="module")
def shop(any_server: str) -> Iterator[Staff]:
    """Users of a schema with an ordered queue, one without order, and one for callbacks."""
    schema = f"r_{uuid4().hex[:12]}"
    with dropping_roles(any_server, schema), SqlQueue(any_server, schema=schema) as owner:
        owner.migrate()
        owner.install_roles()
        for spec in (ORDERED, WORK, QueueSpec("ended", JobEnded)):
            owner.create_queue(spec)
        with staff_of(owner, any_server) as staff:
            yield staff


@pytest.fixture
def parked(shop: Staff) -> tuple[str, UUID]:
    """A key whose first job is under a lease, and the job that waits for it."""
    key = str(uuid4())
    first, second = (NewJob(Work(n=n), ordering_key=key) for n in (1, 2))
    shop.owner.enqueue(ORDERED, first)
    shop.owner.claim("in_turns", limit=1, worker="w", lease_seconds=600)
    waits = shop.owner.enqueue(ORDERED, second)
    shop.owner.claim("in_turns", limit=1, worker="w")
    assert waits
    assert value(shop.owner, "SELECT available_at = 'infinity' FROM {s}.job WHERE id = %s", waits) is True
    return key, waits


@pytest.mark.parametrize(
    "query",
    [
        "UPDATE {s}.job SET available_at = '2100-01-01' WHERE available_at = 'infinity'",
        "UPDATE {s}.job SET followed = false",
        "UPDATE {s}.replaceable_job SET available_at = '2100-01-01' WHERE order_no IS NOT NULL",
        "UPDATE {s}.replaceable_job SET attempt = 5",
        "UPDATE {s}.replaceable_job SET error = 'forged'",
        "UPDATE {s}.replaceable_job SET cancel_requested_at = now()",
        "SELECT payload FROM {s}.replaceable_job",
        "SELECT followed FROM {s}.job",
        "SELECT 1 FROM {s}.job FOR UPDATE",
        "SELECT 1 FROM {s}.job FOR KEY SHARE",
        "DELETE FROM {s}.follower",
        "SELECT id FROM {s}.follower",
        "SELECT job_id FROM {s}.follower",
        "UPDATE {s}.follower SET submitted_id = gen_random_uuid()",
        "UPDATE {s}.follower SET put_by = current_user",
        "UPDATE {s}.own_follower SET group_id = NULL",
        "INSERT INTO {s}.follower (id, job_id, states, put_by) SELECT id, id, '{failed}', 'x' FROM {s}.job",
        "INSERT INTO {s}.own_follower (id) VALUES (gen_random_uuid())",
    ],
)
def test_what_a_producer_may_not_write(shop: Staff, parked: tuple[str, UUID], query: str) -> None:
    with shop.connected(Role.PRODUCER) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(shop.text(query))


def test_the_view_of_jobs_that_wait_for_their_turn_is_gone(shop: Staff) -> None:
    with shop.connected(Role.PRODUCER) as connection, pytest.raises(psycopg.errors.UndefinedTable):
        connection.execute(shop.text("UPDATE {s}.parked_job SET available_at = '2100-01-01'"))


def test_a_producer_lets_no_job_in_before_its_turn_nor_at_another_moment(shop: Staff, parked: tuple[str, UUID]) -> None:
    key, waits = parked
    waiting = "SELECT available_at = 'infinity' FROM {s}.job WHERE id = %s"
    let_in = shop.text("SELECT * FROM {s}.promote_keys('in_turns', %s)")
    with shop.connected(Role.PRODUCER) as connection:
        assert connection.execute(let_in, ([key],)).fetchall() == []
        assert value(shop.owner, waiting, waits) is True
        # The first of the key goes, with nobody to let the next in: who does so chooses no moment.
        rows(shop.owner, "DELETE FROM {s}.job WHERE ordering_key = %s AND id <> %s", key, waits)
        assert connection.execute(let_in, ([key],)).fetchall() == [(waits,)]
    assert value(shop.owner, "SELECT available_at <= clock_timestamp() FROM {s}.job WHERE id = %s", waits) is True


def test_content_that_a_producer_replaces_lets_no_job_in_before_its_turn(shop: Staff) -> None:
    """However it replaces it: when a job is due, and how often it was tried, is not the producer's to say."""
    key = str(uuid4())
    shop.owner.enqueue(ORDERED, NewJob(Work(n=1), ordering_key=key))
    shop.owner.claim("in_turns", limit=1, worker="w", lease_seconds=600)
    waits = shop.owner.enqueue(ORDERED, NewJob(Work(n=2), ordering_key=key, unique_key=key))
    shop.owner.claim("in_turns", limit=1, worker="w")
    rows(shop.owner, "UPDATE {s}.job SET attempt = 2, error = 'x', cancel_requested_at = now() WHERE id = %s", waits)
    with shop.connected(Role.PRODUCER) as connection:
        replace = shop.text("UPDATE {s}.replaceable_job SET payload = '{}', run_at = %s WHERE id = %s")
        connection.execute(replace, ("2000-01-01 00:00:00+00", waits))
        assert rows(
            shop.owner,
            "SELECT available_at = 'infinity', attempt, error, cancel_requested_at FROM {s}.job WHERE id = %s",
            waits,
        ) == [(True, 0, None, None)]
        connection.execute(replace, ("2999-01-01 00:00:00+00", waits))
        assert value(shop.owner, "SELECT available_at = run_at FROM {s}.job WHERE id = %s", waits) is True


@pytest.fixture
def followed(shop: Staff) -> tuple[UUID, UUID]:
    """A job that the owner follows; returns its id and the follower's."""
    job = shop.owner.enqueue(WORK, Work(n=1))
    assert job
    Followers(shop.owner).follow(job, Callback("ended"))
    (follower,) = Followers(shop.owner).of(job)
    return job, follower.id


def test_who_follows_is_notified_whatever_others_try_with_its_follower(
    shop: Staff, followed: tuple[UUID, UUID]
) -> None:
    job, follower = followed
    for role in (Role.PRODUCER, Role.CONSUMER):
        with shop.connected(role) as connection:
            for query in (
                "UPDATE {s}.job SET followed = false WHERE id = %(job)s",
                "DELETE FROM {s}.follower WHERE id = %(follower)s",
                "DELETE FROM {s}.own_follower WHERE id = %(follower)s",
                "UPDATE {s}.own_follower SET submitted_id = gen_random_uuid() WHERE id = %(follower)s",
                "DELETE FROM {s}.own_follower",
            ):
                try:
                    assert connection.execute(shop.text(query), {"job": job, "follower": follower}).rowcount == 0
                except psycopg.errors.InsufficientPrivilege:
                    continue
    shop.users[Role.PRODUCER].database.run("unfollow", {"ids": [follower]})
    (held,) = [j for j in shop.owner.claim("work", limit=100, worker="w") if j.id == job]
    shop.owner.complete([held])
    callbacks = "SELECT count(*) FROM {s}.job WHERE queue = 'ended' AND payload ->> 'job_id' = %s"
    assert value(shop.owner, callbacks, str(job)) == 1


def test_two_producers_take_back_their_own_followers_alone(
    shop: Staff, any_server: str, followed: tuple[UUID, UUID]
) -> None:
    job, owners = followed
    other = f"{shop.schema}_other"
    with psycopg.connect(any_server, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN IN ROLE {}").format(
                sql.Identifier(other), sql.Identifier(role_name(shop.schema, Role.PRODUCER))
            )
        )
    mine = uuid4()
    put = shop.text(
        "INSERT INTO {s}.follower (id, job_id, states, notify) VALUES (%s, %s, '{succeeded}', true) ON CONFLICT DO NOTHING"
    )
    with psycopg.connect(url_of(any_server, other), autocommit=True) as connection:
        connection.execute(put, (mine, job))
        with shop.connected(Role.PRODUCER) as attacker:
            assert attacker.execute(shop.text("DELETE FROM {s}.own_follower WHERE id = %s"), (mine,)).rowcount == 0
            known = attacker.execute(shop.text("SELECT * FROM {s}.known_followers(%s)"), ([mine, owners, uuid4()],))
            assert {id for (id,) in known} == {mine, owners}
        assert connection.execute(shop.text("SELECT id FROM {s}.own_follower")).fetchall() == [(mine,)]
        assert connection.execute(shop.text("DELETE FROM {s}.own_follower")).rowcount == 1


def test_a_consumer_that_says_how_far_its_job_is_has_the_note_removed_with_it(shop: Staff) -> None:
    consumer = shop.users[Role.CONSUMER]
    job = shop.owner.enqueue(WORK, Work(n=2))
    (held,) = [j for j in consumer.claim("work", limit=100, worker="w") if j.id == job]
    for percent in (10, 20):
        consumer.leases.note_progress(held, percent)
    assert value(shop.owner, "SELECT followed FROM {s}.job WHERE id = %s", job) is True
    assert value(shop.owner, "SELECT percent FROM {s}.job_progress WHERE job_id = %s", job) == 20
    consumer.complete([held])
    assert value(shop.owner, "SELECT count(*) FROM {s}.job_progress WHERE job_id = %s", job) == 0


def test_an_id_that_a_producer_says_was_sent_before_is_believed(shop: Staff) -> None:
    """It cannot be prevented, and docs/roles.md says so: who replaces jobs notes the ids that gave way."""
    guessed = uuid4()
    with shop.connected(Role.PRODUCER) as connection:
        connection.execute(shop.text(f"INSERT INTO {{s}}.job_replaced (id) VALUES ('{guessed}')"))
    assert shop.owner.enqueue(WORK, NewJob(Work(n=1), id=guessed)) is None
    assert shop.owner.enqueue(WORK, NewJob(Work(n=1)))


def test_who_waits_for_jobs_is_woken_by_them_and_by_nothing_else_of_a_producers(shop: Staff, any_server: str) -> None:
    """A producer needs no right to the table of those who wait: the trigger has it."""
    tried = [
        "SELECT * FROM {s}.armed_waiter",
        "DELETE FROM {s}.armed_waiter",
        "DELETE FROM {s}.armed_long_ago",
        "INSERT INTO {s}.armed_waiter (queue, expires_at, backend, choosy) VALUES ('work', 'infinity', 1, false)",
        "SELECT {s}.arm_waiter('work', NULL, false, 60)",
        "SELECT {s}.disarm_waiter('work')",
        "SELECT {s}.pass_wake('work', NULL)",
        "SELECT {s}.wake_waiter('work', NULL)",
        "CREATE TRIGGER mine AFTER INSERT ON {s}.job FOR EACH ROW EXECUTE FUNCTION {s}.wake_by_job()",
        "ALTER TABLE {s}.job DISABLE TRIGGER job_wakes",
        "SET LOCAL session_replication_role = replica",
    ]
    with armed(shop.owner, any_server, 2) as sessions:
        with psycopg.connect(url_of(any_server, shop.user(Role.PRODUCER)), autocommit=True) as connection:
            for query in tried:
                with pytest.raises(psycopg.errors.InsufficientPrivilege), connection.transaction():
                    connection.execute(sql.SQL(query).format(s=sql.Identifier(shop.schema)))  # type: ignore[arg-type]
        shop.users[Role.PRODUCER].enqueue(WORK, Work(n=1))
        assert wakes(sessions) == [1, 0]
