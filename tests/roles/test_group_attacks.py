"""What a producer tries against the groups of other users, and who may fill and close them."""

from collections.abc import Iterator
from uuid import UUID, uuid4

import psycopg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.errors import AccessRefused
from dagster_sqlqueue.followers import Callback, Followers, GroupEnded, Groups
from tests.roles.support import Staff, colleague, staffed
from tests.support import Work, rows, value

WORK = QueueSpec("work", Work, bucket_count=1)
ENDED = QueueSpec("ended", GroupEnded)


@pytest.fixture(scope="module")
def shop(any_server: str) -> Iterator[Staff]:
    """Users of a schema with a queue of jobs, and one for the callbacks of groups."""
    with staffed(any_server, WORK, ENDED) as staff:
        yield staff


@pytest.fixture(scope="module")
def opener(shop: Staff) -> Iterator[SqlQueue]:
    """Another producer, whose groups the producer of the shop attacks."""
    with colleague(shop, Role.PRODUCER) as queue:
        yield queue


@pytest.fixture
def group(opener: SqlQueue) -> UUID:
    """An open group with one job that waits."""
    made = Groups(opener).open(Callback("ended"))
    assert Followers(opener).enqueue(WORK, Work(n=1), group=made)
    return made


def _of(shop: Staff, group: UUID) -> tuple[object, ...]:
    (found,) = rows(
        shop.owner,
        "SELECT members, pending, closed_at IS NOT NULL, ended_at IS NOT NULL FROM {s}.job_group WHERE id = %s",
        group,
    )
    return found


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO {s}.group_tally (group_id, closes) VALUES (%(group)s, true)",
        "INSERT INTO {s}.group_tally (group_id, members) VALUES (%(group)s, -1)",
        "INSERT INTO {s}.group_tally (group_id, members) VALUES (%(group)s, 5)",
        "UPDATE {s}.group_tally SET members = 5",
        "UPDATE {s}.job_group SET created_at = '1999-01-01' WHERE id = %(group)s",
        "UPDATE {s}.job_group SET opened_by = session_user WHERE id = %(group)s",
        "UPDATE {s}.job_group SET closed_at = now() WHERE id = %(group)s",
        "SELECT 1 FROM {s}.job_group WHERE id = %(group)s FOR UPDATE",
        "INSERT INTO {s}.job_group (id, priority, opened_by) VALUES (gen_random_uuid(), 0, 'somebody')",
        "DELETE FROM {s}.job_group WHERE id = %(group)s",
        "SELECT * FROM {s}.close_group(%(group)s)",
        "SELECT * FROM {s}.join_group(%(group)s)",
        "INSERT INTO {s}.follower (id, job_id, states, group_id) SELECT gen_random_uuid(), j.id, '{{failed}}', %(group)s"
        " FROM {s}.job AS j LIMIT 1",
        "INSERT INTO {s}.follower (id, job_id, states, group_id) VALUES (gen_random_uuid(), gen_random_uuid(), '{{failed}}',"
        " %(group)s)",
    ],
)
def test_a_producer_does_nothing_to_the_group_of_another(shop: Staff, group: UUID, query: str) -> None:
    with shop.connected(Role.PRODUCER) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
        connection.execute(shop.text(query.replace("{{", "{").replace("}}", "}")), {"group": group})
    assert _of(shop, group) == (1, 1, False, False)


def test_who_did_not_open_a_group_learns_who_did(shop: Staff, opener: SqlQueue, group: UUID) -> None:
    groups = Groups(shop.users[Role.PRODUCER])
    job = shop.users[Role.PRODUCER].enqueue(WORK, Work(n=2))
    assert job
    for attempt in (lambda: groups.add(group, [job]), lambda: groups.close(group)):
        with pytest.raises(AccessRefused) as refused:
            attempt()
        by = value(shop.owner, "SELECT opened_by FROM {s}.job_group WHERE id = %s", group)
        assert f'was opened by user "{by}"' in str(refused.value)
        assert f'GRANT "{by}" TO "{shop.user(Role.PRODUCER)}"' in str(refused.value)
    assert _of(shop, group) == (1, 1, False, False)
    Groups(opener).close(group)
    assert _of(shop, group) == (1, 1, True, False)


@pytest.mark.parametrize("who", ["operator", "owner", "one who was granted the opener's rights"])
def test_groups_are_filled_and_closed_also_by(shop: Staff, opener: SqlQueue, group: UUID, who: str) -> None:
    by = value(shop.owner, "SELECT opened_by FROM {s}.job_group WHERE id = %s", group)
    job = shop.owner.enqueue(WORK, Work(n=3))
    assert job
    with colleague(shop, Role.PRODUCER, rights_of=by) as member:
        groups = Groups({"operator": shop.users[Role.OPERATOR], "owner": shop.owner}.get(who, member))
        groups.add(group, [job])
        groups.close(group)
    assert _of(shop, group) == (2, 2, True, False)


def test_no_member_is_counted_that_was_not_added(shop: Staff, opener: SqlQueue) -> None:
    """Not even by who opened the group: what is counted are rows."""
    group = Groups(opener).open()
    for query in (
        f"INSERT INTO {{s}}.group_tally (group_id, members) VALUES ('{group}', 5)",
        f"INSERT INTO {{s}}.group_tally (group_id, members, closes) VALUES ('{group}', -1, true)",
    ):
        with opener.database.connection() as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(shop.text(query))
    assert _of(shop, group) == (0, 0, False, False)
    jobs = [shop.owner.enqueue(WORK, Work(n=n)) for n in range(3)]
    put = (
        "INSERT INTO {s}.follower (id, job_id, states, group_id)"
        " SELECT gen_random_uuid(), j, '{failed}', %s FROM unnest(%s) AS j"
    )
    with opener.database.connection() as connection:
        connection.execute(shop.text(put), (group, jobs))
    assert _of(shop, group) == (3, 3, False, False)


def test_a_group_that_is_not_there_is_nobodys(shop: Staff) -> None:
    with shop.connected(Role.PRODUCER) as connection:
        for call in ("join_group", "close_group"):
            assert connection.execute(shop.text(f"SELECT * FROM {{s}}.{call}(%s)"), (uuid4(),)).fetchall() == []
