"""Roles are installed while others work with them, and by processes that are killed at it."""

import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_sqlqueue import Consumer, Done, QueueSpec, SqlQueue
from dagster_sqlqueue.db.executors import Transaction
from dagster_sqlqueue.db.permissions import Role, role_name
from dagster_sqlqueue.schema import roles
from tests.roles.support import Staff
from tests.support import Work, rows
from tests.support.few import few

PROJECT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("installs", [10, pytest.param(40, marks=pytest.mark.prove)])
def test_nobody_is_refused_while_roles_are_installed_again(staff: Staff, spec: QueueSpec[Work], installs: int) -> None:
    installed = threading.Event()
    producer, consumer, observer = (staff.users[role] for role in (Role.PRODUCER, Role.CONSUMER, Role.OBSERVER))

    def put() -> int:
        count = 0
        while not installed.is_set():
            count += producer.enqueue_many(spec, [Work(n=n) for n in range(250)]).inserted
        return count

    def work() -> int:
        count = 0
        while not installed.is_set():
            count += Consumer(consumer, spec, lambda _: Done()).drain().succeeded
        return count

    def read() -> int:
        count = 0
        while not installed.is_set():
            count += len(observer.queues()) + (observer.stats("work").ready >= 0)
        return count

    def vacuum() -> int:
        while not installed.is_set():
            rows(staff.owner, "VACUUM ANALYZE {s}.job")
        return 1

    with ThreadPoolExecutor(5) as pool:
        at_it = [pool.submit(job) for job in (put, work, read, vacuum)]
        try:
            for _ in range(installs):
                staff.owner.install_roles()
        finally:
            installed.set()
        put_in, done, found, _ = (future.result() for future in at_it)
    done += Consumer(consumer, spec, lambda _: Done()).drain().succeeded
    assert put_in == done > 0
    assert found > 0


@pytest.mark.parametrize("rounds", [3, pytest.param(8, marks=pytest.mark.prove)])
def test_a_kill_leaves_all_of_the_grants_or_none(any_server: str, own_schema: str, rounds: int) -> None:
    seen = set()
    with SqlQueue(any_server, schema=own_schema) as owner:
        owner.migrate()
        for number in range(rounds):
            _take_away(owner)
            with subprocess.Popen(
                [sys.executable, "-m", "tests.roles.installer", any_server, own_schema],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=PROJECT,
                env={**os.environ, "PYTHONPATH": str(PROJECT)},
            ) as child:
                assert child.stdin
                assert child.stdout
                assert child.stdout.readline() == "ready\n"
                child.stdin.write("go\n")
                child.stdin.flush()
                if number == 0:
                    assert child.stdout.readline() == "done\n"
                else:
                    threading.Event().wait(random.random() * 0.08)
                child.send_signal(signal.SIGKILL)
            # What the killed session had begun is undone, or done, before another may install.
            with owner.database.connection() as connection, connection.transaction():
                Transaction(connection, owner.database).run("migration_lock", {"schema": own_schema})
            found = roles.examine(owner.database)
            assert found in (None, roles.Differences((), (), ())), number
            assert _marks(owner) <= {f"dagster-sqlqueue: {role} of schema {own_schema}" for role in Role}
            seen.add((found is None, len(_marks(owner))))
            assert len(owner.install_roles()) == 4
            assert roles.examine(owner.database) == roles.Differences((), (), ())
    assert (False, 4) in seen


def _marks(owner: SqlQueue) -> set[str]:
    names = [role_name(owner.database.schema, role) for role in Role]
    found = rows(owner, "SELECT shobj_description(oid, 'pg_authid') FROM pg_roles WHERE rolname = ANY (%s)", names)
    return {mark for (mark,) in found}


def _take_away(owner: SqlQueue) -> None:
    for role in Role:
        name = role_name(owner.database.schema, role)
        if rows(owner, "SELECT 1 FROM pg_roles WHERE rolname = %s", name):
            rows(owner, f'DROP OWNED BY "{name}"')
            rows(owner, f'DROP ROLE "{name}"')


@pytest.mark.parametrize("role", few(list(Role), 2))
def test_who_was_in_the_middle_of_a_transaction_goes_on(staff: Staff, role: Role) -> None:
    with staff.connected(role) as connection, connection.transaction():
        connection.execute(staff.text("SELECT name FROM {s}.queue"))
        staff.owner.install_roles()
        assert connection.execute(staff.text("SELECT count(*) FROM {s}.queue")).fetchone() == (1,)
