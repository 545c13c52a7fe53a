"""`migrate --roles`, the check of doctor, and commands of users who have one role each."""

import json
from collections.abc import Iterator
from uuid import uuid4

import pytest
from sqlalchemy.engine import make_url

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.db.permissions import Role
from tests.cli.support import PROJECT, Cli
from tests.roles.support import Staff, dropping_roles, staff_of, url_of
from tests.support import Work, rows

FOUR = ["consumer", "observer", "operator", "producer"]


@pytest.fixture
def schema(url: str) -> Iterator[str]:
    """A name that no role of the server was named after."""
    name = f"r_{uuid4().hex[:12]}"
    with dropping_roles(url, name):
        yield name


@pytest.fixture
def queue(fresh: SqlQueue) -> SqlQueue:
    """Whose roles are made by the tests."""
    return fresh


@pytest.fixture
def staff(cli: Cli, queue: SqlQueue, url: str) -> Iterator[Staff]:
    """A user for each role of the schema of `cli`."""
    assert cli.run("migrate", "--roles").exit_code == 0
    with staff_of(queue, url) as staff:
        yield staff


@pytest.fixture(scope="module")
def standing(url: str) -> Iterator[Staff]:
    """A user for each role of one schema: what they try there is refused."""
    schema = f"r_{uuid4().hex[:12]}"
    with dropping_roles(url, schema), SqlQueue(url, schema=schema) as owner:
        owner.migrate()
        owner.install_roles()
        spec = QueueSpec("work", Work)
        owner.create_queue(spec)
        owner.enqueue(spec, Work(n=1))
        with staff_of(owner, url) as staff:
            yield staff


def _as(staff: Staff, role: Role) -> Cli:
    return Cli({"SQLQUEUE_URL": url_of(staff.url, staff.user(role)), "SQLQUEUE_SCHEMA": staff.schema})


def test_init_makes_the_roles_and_says_so(bare: Cli, schema: str) -> None:
    first = bare.run("migrate", "--roles")
    assert first.exit_code == 0
    assert [line for line in first.stdout.splitlines() if line.startswith("role ")] == [
        f"role {schema}_{name} was created and has its privileges" for name in FOUR
    ]
    again = bare.json("migrate", "--roles")
    assert again["roles"] == [{"name": f"{schema}_{name}", "made": False, "members": []} for name in FOUR]
    assert "roles" not in bare.json("migrate")


def test_members_are_named(staff: Staff, cli: Cli) -> None:
    shown = cli.run("migrate", "--roles").stdout
    assert (
        f"role {staff.schema}_producer exists and has its privileges; its members: {staff.user(Role.PRODUCER)}" in shown
    )


def test_a_producer_fills_a_group_that_it_may_not_read(staff: Staff, cli: Cli) -> None:
    producer = _as(staff, Role.PRODUCER)
    opened = producer.run("group", "open", "--callback", "work")
    assert opened.exit_code == 0, opened.stderr
    group = opened.stdout.split()[-1]
    job = cli.json("enqueue", "work", '{"n": 1}')["id"]
    assert producer.run("group", "add", group, job).stdout == f"added jobs to group {group}\n"
    assert producer.json("group", "close", group) == {"id": group}
    found = cli.json("group", "show", group)
    assert (found["members"], found["queue"]) == (1, "work")
    assert found["closed_at"] is not None


def test_what_a_dba_runs_is_printed_without_a_database(url: str, schema: str) -> None:
    naked = Cli({"SQLQUEUE_URL": "postgresql://nobody@127.0.0.1:1/nothing", "SQLQUEUE_SCHEMA": schema})
    printed = naked.run("migrate", "--roles", "--print")
    assert printed.exit_code == 0
    assert naked.json("migrate", "--roles", "--print") == {"schema": schema, "sql": printed.stdout}
    with SqlQueue(url, schema=schema) as dba:
        rows(dba, printed.stdout.replace("{", "{{").replace("}", "}}"))
        found = rows(dba, "SELECT rolname FROM pg_roles WHERE rolname LIKE %s ORDER BY 1", f"{schema}%")
    assert [name for (name,) in found] == [f"{schema}_{name}" for name in FOUR]


def test_print_is_about_roles() -> None:
    assert "--print was given without --roles" in Cli({}).refused(Code.INPUT, "migrate", "--print")


def test_a_schema_with_too_long_a_name_is_bad_input() -> None:
    line = Cli({"SQLQUEUE_SCHEMA": "s" * 55}).refused(Code.INPUT, "migrate", "--roles", "--print")
    assert "it can have 54 at most" in line


def test_who_may_make_no_roles_learns_what_to_print(bare: Cli, url: str, schema: str) -> None:
    with SqlQueue(url, schema=schema) as dba:
        user = f"{schema}_owner"
        database = make_url(url).database
        rows(dba, f'CREATE ROLE "{user}" LOGIN')
        rows(dba, f'GRANT CREATE ON DATABASE "{database}" TO "{user}"')
    lowly = Cli({**bare.environment, "SQLQUEUE_URL": url_of(url, user)})
    assert lowly.run("migrate").exit_code == 0
    assert "sqlqueue migrate --roles --print" in lowly.refused(Code.DATABASE, "migrate", "--roles")


@pytest.mark.parametrize(
    ("role", "command", "needed"),
    [
        (Role.PRODUCER, "stats work", "observer"),
        (Role.PRODUCER, "peek work", "consumer"),
        (Role.PRODUCER, "pause work", "operator"),
        (Role.PRODUCER, "list work", "observer"),
        (Role.CONSUMER, "cancel work --all", "operator"),
        (Role.CONSUMER, "maintain", "operator"),
        (Role.OBSERVER, "create more", "operator"),
        (Role.OBSERVER, "enqueue work {}", "producer"),
        (Role.OBSERVER, "maintain", "operator"),
        (Role.OBSERVER, "schedule pause work nightly", "operator"),
    ],
)
def test_what_is_refused_is_one_line_with_the_role_that_it_takes(
    standing: Staff, role: Role, command: str, needed: str
) -> None:
    line = _as(standing, role).refused(Code.DATABASE, *command.split())
    assert f"user '{standing.user(role)}' may not do that" in line
    assert f'"{standing.schema}_{needed}"' in line
    assert "GRANT" in line


@pytest.mark.parametrize(
    "command",
    [
        *("purge work", "delete work --all", "delete {id}", "cancel work --all", "retry work --all", "hold work --all"),
        *("release work --all", "maintain"),
    ],
)
def test_only_roles_that_do_all_of_a_command_are_named(standing: Staff, command: str) -> None:
    ((id,),) = rows(standing.owner, "SELECT id FROM {s}.job")
    line = _as(standing, Role.PRODUCER).refused(Code.DATABASE, *command.replace("{id}", str(id)).split())
    assert f'it takes the role "{standing.schema}_operator"' in line


def test_a_dry_run_of_the_roles_makes_none_and_says_where_their_sql_is(cli: Cli, queue: SqlQueue) -> None:
    schema = queue.database.schema
    printed = cli.json("migrate", "--roles", "--print")["sql"]
    assert f"'{schema}'" in printed
    assert cli.json("migrate", "--roles", "--dry-run") == {"schema": schema, "pending": [], "roles_sql": printed}
    said = cli.run("migrate", "--roles", "--dry-run").stdout
    assert said.endswith("; SQL: sqlqueue migrate --roles --print\n")
    assert "role" not in cli.run("migrate", "--dry-run").stdout
    assert not rows(queue, "SELECT FROM pg_roles WHERE starts_with(rolname, %s)", schema)


def test_a_dry_run_takes_a_role_that_reads(standing: Staff) -> None:
    line = _as(standing, Role.PRODUCER).refused(Code.DATABASE, "purge", "work", "--dry-run")
    assert f'"{standing.schema}_observer"' in line
    assert _as(standing, Role.OBSERVER).run("purge", "work", "--dry-run").exit_code == 0
    ((job,),) = rows(standing.owner, "SELECT CAST(id AS text) FROM {s}.job")
    assert _as(standing, Role.OBSERVER).run("replace-payload", job, "{}", "--dry-run").exit_code == 0


def test_an_owner_is_asked_for_where_no_role_will_do(staff: Staff) -> None:
    assert "it takes the owner of the schema" in _as(staff, Role.OPERATOR).refused(Code.DATABASE, "migrate")


def test_each_does_the_work_of_the_day(staff: Staff, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(PROJECT / "deploy")
    producer, consumer, operator, observer = (
        _as(staff, role) for role in (Role.PRODUCER, Role.CONSUMER, Role.OPERATOR, Role.OBSERVER)
    )
    for command in ("create emails", "create reports", "subscribe t.mail all emails"):
        assert operator.run(*command.split()).exit_code == 0
    payload = json.dumps({"to": "ann@example.com", "subject": "hello"})
    id = producer.json("enqueue", "emails", payload)["id"]
    assert producer.run("publish", "t.mail", payload).exit_code == 0
    for command in ("queues", "stats", "peek emails", "list emails", f"show {id}", "dead emails", "schedule list"):
        shown = observer.run(*command.split())
        assert shown.exit_code == 0, (command, shown.output)
    report = observer.run("doctor", "--json")
    assert {
        "name": "roles",
        "verdict": "ok",
        "found": "each has what it needs, and nothing else",
        "cure": "",
    } in json.loads(report.stdout)["checks"]
    worked = consumer.run("work", "handlers:send_email", "--drain")
    assert worked.exit_code == 0, worked.output
    assert observer.json("stats", "emails")[0]["ready"] == 0
    for command in ("maintain", "pause emails", "resume emails", "rebucket emails 4", "trim"):
        assert operator.run(*command.split()).exit_code == 0, command


def test_doctor_fails_when_a_grant_is_lacking(staff: Staff, cli: Cli) -> None:
    rows(staff.owner, f'REVOKE SELECT ON {{s}}.queue FROM "{staff.schema}_consumer"')
    result = cli.run("doctor", "--json")
    assert result.exit_code == Code.FAILED
    (check,) = [check for check in json.loads(result.stdout)["checks"] if check["name"] == "roles"]
    assert check["verdict"] == "fail"
    assert check["found"] == f"lacking: {staff.schema}_consumer: SELECT on queue"
    assert "sqlqueue migrate --roles" in check["cure"]
