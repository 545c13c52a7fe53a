"""Every verb as every role: who may does it; for others the error names the role that it takes, and nothing changes; also on
connections that only read, and as a user of two roles.
"""

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from psycopg import sql

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.errors import AccessRefused
from dagster_sqlqueue.followers import Followers, Groups
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.people import HumanWork
from dagster_sqlqueue.queue.catalog import Catalog
from dagster_sqlqueue.queue.claim_request import ClaimRequest
from dagster_sqlqueue.queue.endings import Ending, Endings
from dagster_sqlqueue.queue.maintenance import Maintenance
from dagster_sqlqueue.results import ReplyQueue, Results
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.topics import Topics
from tests.roles.desk import Desk
from tests.roles.support import Staff, url_of
from tests.roles.table import MODULES, TABLE
from tests.support import Work, rows

_UNCALLED = {
    "close",
    "stops_key",  # asks nothing of the database
    "delays",
    "unknown",  # makes an error
    "not_among",
    "matches",  # asks the database about the values it is given, and no table
    "settings_within",  # what the verbs that read settings are made of
    "step",  # what the steps of people are made of
}

_WHOLE = {
    *("cancel", "reschedule", "reprioritise", "hold_queued", "release_held", "complete_held", "delete"),
    *("redrive", "redrive_of_a_key", "replace_payload", "replace_payload_of_a_dead_letter", "maintain", "trim"),
}
"""What reads before it writes, and names the roles that do both."""


@pytest.mark.parametrize("attempted", TABLE)
def test_who_may(shared: Staff, role: Role, attempted: str) -> None:
    may, attempt = TABLE[attempted]
    user = shared.user(role)
    desk = Desk(shared.owner, url_of(shared.url, user))
    if role in may:
        attempt(shared.users[role], desk)
        return
    with pytest.raises(AccessRefused) as caught:
        attempt(shared.users[role], desk)
    message = str(caught.value)
    assert isinstance(caught.value, PermissionError)
    assert repr(user) in message
    named = set(re.findall(rf'"{shared.schema}_(\w+?)"', message.partition("have a DBA")[0]))
    assert named >= set(may)
    assert role not in named
    if attempted in _WHOLE:
        assert named == set(may)
    assert may or "own" in message


def test_every_verb_is_attempted() -> None:
    text = "".join(Path(str(module.__file__)).read_text(encoding="utf-8") for module in MODULES)
    with SqlQueue("postgresql://nobody@nowhere/nothing") as queue:
        leases = queue.leases
    for kind in (
        SqlQueue,
        Catalog,
        leases,
        Maintenance,
        Topics,
        Schedules,
        HumanWork,
        Followers,
        Groups,
        Results,
        ReplyQueue,
    ):
        names = {name for name, _ in inspect.getmembers(kind, inspect.isroutine) if not name.startswith("_")}
        missing = {name for name in names - _UNCALLED if not re.search(rf"\.{name}\(", text)}
        assert missing == set(), kind


@pytest.fixture
def reader(staff: Staff, any_server: str) -> Iterator[SqlQueue]:
    """An observer whose transactions are read-only, as the page advises."""
    name = staff.user(Role.OBSERVER)
    rows(staff.owner, f'ALTER ROLE "{name}" SET default_transaction_read_only = on')
    with SqlQueue(url_of(any_server, name), schema=staff.schema) as queue:
        yield queue


def test_an_observer_needs_no_transaction_that_writes(staff: Staff, reader: SqlQueue) -> None:
    attempts = {name: attempt for name, (may, attempt) in TABLE.items() if Role.OBSERVER in may}
    assert len(attempts) >= 15
    for attempt in attempts.values():
        attempt(reader, Desk(staff.owner, url_of(staff.url, staff.user(Role.OBSERVER))))


def test_two_roles_do_what_each_may(staff: Staff, spec: QueueSpec[Work], any_server: str) -> None:
    """A consumer whose handler enqueues, in the transaction that ends the job."""
    user = staff.user(Role.CONSUMER)
    connection = staff.owner.database
    with connection.connection() as driver:
        driver.execute(
            sql.SQL("GRANT {} TO {}").format(sql.Identifier(f"{staff.schema}_producer"), sql.Identifier(user))
        )
    both = staff.users[Role.CONSUMER]
    both.enqueue(spec, Work(n=1))
    with both.database.transaction() as transaction:
        jobs = both.leases.lock_due(transaction, ClaimRequest("work", buckets=range(4), limit=1))
        both.enqueue(spec, Work(n=2), connection=transaction.connection)
        both.leases.finish_locked(
            transaction, Endings.of(Ending(job, ArchiveState.SUCCEEDED) for job in jobs), worker="w"
        )
    assert staff.owner.depth("work").ready == 1
