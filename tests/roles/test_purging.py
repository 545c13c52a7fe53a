"""Who purges a queue and deletes jobs by a filter: an operator, who may look first; producers and consumers do neither."""

import psycopg
import pytest

from dagster_sqlqueue import NewJob, QueueSpec
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.queue.endings import Ending
from dagster_sqlqueue.queue.selection import Selection
from tests.cli.support import Cli
from tests.roles.support import Staff, url_of
from tests.support import Work, value

_COMMANDS = ("purge work", "delete work --tag spoilt", "delete work --state failed")
_EVERYTHING = "SELECT jsonb_agg(to_jsonb(j) ORDER BY j.id) FROM {s}.job_all AS j"


@pytest.fixture
def jobs(staff: Staff, spec: QueueSpec[Work]) -> dict[str, list[str]]:
    """Ids of jobs of the queue: a dead letter, a running one, three that wait and one of them spoilt, and one set aside."""
    owner = staff.owner

    def put(*tags: str) -> list[str]:
        return [str(owner.enqueue(spec, NewJob(Work(n=1), tags=[tag]))) for tag in tags]

    dead = put("dead")
    (job,) = owner.claim("work", limit=1, worker="w")
    owner.finish([Ending(job, ArchiveState.FAILED, error="no")])
    running = put("running")
    assert len(owner.claim("work", limit=1, worker="w", lease_seconds=3_600)) == 1
    held = put("held")
    owner.hold_queued("work", Selection(ids=held), "look")
    return {"dead": dead, "running": running, "held": held, "spoilt": put("spoilt"), "queued": put("queued", "queued")}


def _as(staff: Staff, role: Role) -> Cli:
    return Cli({"SQLQUEUE_URL": url_of(staff.url, staff.user(role)), "SQLQUEUE_SCHEMA": staff.schema})


def test_an_operator_looks_and_purges(staff: Staff, jobs: dict[str, list[str]]) -> None:
    operator = _as(staff, Role.OPERATOR)
    before = value(staff.owner, _EVERYTHING)
    waiting = {*jobs["held"], *jobs["spoilt"], *jobs["queued"]}
    for command, wanted in zip(_COMMANDS, (waiting, {*jobs["spoilt"]}, {*jobs["dead"]}), strict=True):
        looked = operator.json(*command.split(), "--dry-run")
        assert (set(looked["changed"]), looked["dry_run"]) == (wanted, True)
    assert value(staff.owner, _EVERYTHING) == before
    assert operator.json("delete", "work", "--tag", "spoilt")["changed"] == jobs["spoilt"]
    assert operator.json("delete", "work", "--state", "failed")["changed"] == jobs["dead"]
    assert set(operator.json("purge", "work")["changed"]) == {*jobs["held"], *jobs["queued"]}
    assert value(staff.owner, "SELECT array_agg(CAST(id AS text)) FROM {s}.job_all") == jobs["running"]


@pytest.mark.parametrize("role", [Role.PRODUCER, Role.CONSUMER, Role.OBSERVER])
def test_nobody_else_purges(staff: Staff, jobs: dict[str, list[str]], role: Role) -> None:
    """Neither by a command, which names the role that does, nor by SQL."""
    before = value(staff.owner, _EVERYTHING)
    for command in _COMMANDS:
        line = _as(staff, role).refused(Code.DATABASE, *command.split())
        assert f'it takes the role "{staff.schema}_operator"' in line
    with staff.connected(role) as connection:
        for table in ("job", "job_archive"):
            for which in ("", " WHERE queue = 'work'"):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    connection.execute(staff.text(f"DELETE FROM {{s}}.{table}{which}"))
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(staff.text(f"TRUNCATE {{s}}.{table}"))
    assert value(staff.owner, _EVERYTHING) == before


def test_a_producer_sees_no_job_and_a_consumer_those_that_wait(staff: Staff, jobs: dict[str, list[str]]) -> None:
    """Looking takes a role that reads the jobs: a dry run of `delete` looks at ended ones as well."""
    producer, consumer = _as(staff, Role.PRODUCER), _as(staff, Role.CONSUMER)
    for cli, command in [(producer, command) for command in _COMMANDS] + [
        (consumer, command) for command in _COMMANDS[1:]
    ]:
        assert f'"{staff.schema}_observer"' in cli.refused(Code.DATABASE, *command.split(), "--dry-run")
    assert set(consumer.json("purge", "work", "--dry-run")["changed"]) == {
        *jobs["held"],
        *jobs["spoilt"],
        *jobs["queued"],
    }
