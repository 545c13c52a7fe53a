"""Tables that results are written to: their names, rights and columns, and what is written to one of them twice."""

import hashlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.consumer.consumer import Mode
from dagster_sqlqueue.db.permissions import Role
from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable
from dagster_sqlqueue.spark import result_columns, stage_table
from dagster_sqlqueue.spark.consume_verbs import consume
from tests.roles.support import Staff, staffed
from tests.spark.consuming_support import DAYS, SALES, Sale, endings, left_behind, prepare
from tests.spark.totals import table
from tests.support import rows

SHARES_A_SCHEMA = True


def of_days(*days: date, account: str = "ATL") -> pa.Table:
    return pa.table(
        {"day": pa.array(days, pa.date32()), "account": pa.array([account] * len(days)), "n": list(range(len(days)))}
    )


VALUES = {
    "attempt": ("uuid", "'0190163d-8694-739b-aea5-966c26f8ad91'"),
    "task": ("jsonb", """'{"n": 1.10}'"""),
    "sqlqueue_task": ("interval", "'1 day'"),
    "sqlqueue_attempt": ("bigint", "'12'"),
    "c1": ("bigint GENERATED ALWAYS AS IDENTITY", "7"),
    "stage": ("numeric", "9007199254740991D"),
    "accepted": ("numeric(20, 2)", "1234567890123456.75D"),
    "flag": ("text", "true"),
    "moment": ("text", "timestamp'2013-07-04 12:00:00Z'"),
    "utc": ("timestamp", "timestamp'2013-07-04 12:00:00Z'"),
    "plain": ("timestamptz", "timestamp_ntz'2013-07-04 12:00:00'"),
    "size": ("real", "16777217L"),
    "short": ("varchar(3)", "'abc '"),
    'a "b" %s': ("text[]", "'{x,y}'"),
}
"""By column: the type in the table, and what Spark computes."""


@pytest.mark.parametrize("mode", [Mode.LEASED, pytest.param(Mode.TRANSACTIONAL, marks=pytest.mark.prove)])
def test_a_value_becomes_the_same_whoever_writes_it(
    queue: SqlQueue, session: SparkSession, mode: Mode, request: pytest.FixtureRequest
) -> None:
    quoted = {name: '"' + name.replace('"', '""') + '"' for name in VALUES}
    frame = session.range(2).selectExpr(*(f"{given} AS `{name}`" for name, (_, given) in VALUES.items()))
    session.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    request.addfinalizer(lambda: session.conf.set("spark.sql.session.timeZone", "UTC"))
    columns = ", ".join(f"{quoted[name]} {kind}" for name, (kind, _) in VALUES.items())
    shown = ", ".join(f"CAST({name} AS text)" for name in quoted.values())
    found = []
    for by_tasks in (False, True):
        prepare(queue)
        name = f"written_{by_tasks}".lower()
        with queue.database.connection() as connection:
            connection.execute(f"CREATE TABLE {table(queue, name)} ({columns})")
        with consume(queue, session, SALES, key="k", mode=mode) as work:
            assert work.write_sql(frame, table(queue, name), by_tasks=by_tasks) == 2
        with queue.database.connection() as connection:
            found.append(connection.execute(f"SELECT {shown} FROM {table(queue, name)}").fetchall())
    by_driver, by_tasks_too = found
    assert by_driver == by_tasks_too
    assert len(by_driver) == 2
    assert by_driver[0][5:11] == (
        "9007199254740991.0", "1234567890123456.80", "t", "2013-07-04 12:00:00+00:00", "2013-07-04 12:00:00",
        "2013-07-04 12:00:00+00",
    )  # fmt: skip
    zoned = pa.table({"utc": pa.array([1_000_000], pa.timestamp("us", "America/New_York"))})
    rows(queue, "CREATE TABLE {s}.zoned (utc timestamp)")
    prepare(queue)
    with consume(queue, None, SALES, key="k", mode=mode) as work:
        work.write_sql(zoned, table(queue, "zoned"))
    assert rows(queue, "SELECT CAST(utc AS text) FROM {s}.zoned") == [("1970-01-01 00:00:01",)]


def test_a_value_that_a_column_does_not_take_is_refused_whoever_writes_it(
    queue: SqlQueue, session: SparkSession, output: Path
) -> None:
    prepare(queue)
    rows(queue, "CREATE TABLE {s}.whole (n integer)")
    for given in ("1.5D", "1.5BD"):
        for by_tasks in (False, True):
            with (
                pytest.raises(
                    InvalidInput, match=r'whole\' does not take .*: invalid input syntax .* integer: "1.5"\. Mend'
                ),
                consume(queue, session, SALES, key="k") as work,
            ):
                work.write_sql(session.range(1).selectExpr(f"{given} AS n"), table(queue, "whole"), by_tasks=by_tasks)
    assert rows(queue, "SELECT * FROM {s}.whole") == left_behind(queue, output) == endings(queue) == []


@pytest.mark.parametrize(
    ("odd", "said"),
    [
        ("DATE'10000-01-01'", "'10000-01-01': date value out of range"),
        ("TIMESTAMP'12000-01-01 00:00:00Z'", "'12000-01-01.*Z': "),
        ("CAST(unhex('FF41') AS string)", r"b'\\xffA': 'utf-8' codec can't decode"),
        ("'a\\u0000b'", r"'a\\x00b': PostgreSQL text fields cannot contain NUL"),
    ],
    ids=["date", "moment", "utf-8", "nul"],
)
def test_a_value_that_cannot_be_written_is_named_with_its_row(
    queue: SqlQueue, session: SparkSession, output: Path, odd: str, said: str
) -> None:
    prepare(queue)
    frame = session.range(4, numPartitions=1).selectExpr("id", f"CASE WHEN id = 2 THEN {odd} END AS odd")
    for by_tasks, where in ((False, "row 2"), (True, "partition 0, row 2")):
        with (
            pytest.raises(InvalidInput, match=f"column 'odd' of the result cannot be written: {where}, has {said}"),
            consume(queue, session, SALES, key="k") as work,
        ):
            work.write_sql(frame, table(queue, "odd"), by_tasks=by_tasks)
    assert rows(queue, "SELECT to_regclass('{s}.odd')") == [(None,)]
    assert left_behind(queue, output) == endings(queue) == []


@pytest.mark.parametrize("mode", Mode)
def test_a_stage_that_another_session_goes_on_using_holds_up_no_publication_and_no_next_run(
    queue: SqlQueue, session: SparkSession, url: str, output: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_table, "_WAIT_MILLISECONDS", 50)
    frame = session.range(3).selectExpr("id AS n")

    stages: set[str] = set()
    with psycopg.connect(url) as hung:
        for _ in range(2):
            prepare(queue)
            with consume(queue, session, SALES, key="k", mode=mode) as work:
                work.write_sql(frame, table(queue, "kept"), by_tasks=True)
                (stage,) = {name for (name,) in left_behind(queue, output)} - stages
                # As an attempt of a task that hangs in its COPY.
                hung.execute(f'INSERT INTO "{queue.database.schema}"."{stage}" (c0, task, attempt) VALUES (9, 0, -1)')
                stages.add(stage)
        assert {name for (name,) in left_behind(queue, output)} == stages
    prepare(queue)
    with consume(queue, None, SALES, key="k"):
        assert left_behind(queue, output) == []
    assert rows(queue, "SELECT n FROM {s}.kept ORDER BY n") == [(n,) for n in (0, 0, 1, 1, 2, 2)]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"day": DAYS}, {"day": DAYS[1:]}),
        (None, {"day": DAYS[1:]}),
        ({"day": DAYS}, {"account": ["BOS"]}),
        ({"account": ["ATL", None]}, {"account": ["BOS", None]}),
        ({"day": DAYS[:1]}, {"day": ["2013-1-1"]}),
        ({"day": ["2013-1-1"]}, {"day": ["2013-01-01"]}),
    ],
    ids=["same value", "added", "another column", "null", "types", "texts of days"],
)
def test_rows_that_a_second_write_of_the_block_would_delete_are_kept_by_an_error(
    queue: SqlQueue, first: Any, second: Any, made: bool
) -> None:
    prepare(queue)
    if made:
        rows(queue, "CREATE TABLE {s}.twice (day date, account text, n bigint)")
    with (  # noqa: PT012
        pytest.raises(InvalidInput, match=r"'.*twice' was written before in this block, .* write all its rows at once"),
        consume(queue, None, SALES, key="k") as work,
    ):
        work.write_sql(of_days(*DAYS), table(queue, "twice"), replace=first)
        work.write_sql(of_days(*DAYS, account="BOS"), table(queue, "twice"), replace=second)
    assert endings(queue) == []


def test_what_a_block_writes_to_one_table_in_parts_is_all_there(queue: SqlQueue) -> None:
    for _ in range(2):
        prepare(queue)
        with consume(queue, None, SALES, key="k") as work:
            for day in DAYS:
                work.write_sql(of_days(day), table(queue, "parts"), replace={"day": [day]})
            work.write_sql(of_days(*DAYS, account="BOS"), table(queue, "parts"))
            for account in ("ATL", "BOS"):
                parts = of_days(*DAYS, account=account)
                work.write_sql(parts, table(queue, "accounts"), replace={"account": [account]})
    for name in ("parts", "accounts"):
        found = rows(queue, f"SELECT day, account FROM {{s}}.{name} ORDER BY 1, 2")
        assert found == [(day, account) for day in DAYS for account in ("ATL", "BOS")]


def test_rows_without_a_value_are_replaced_as_those_of_any_value(queue: SqlQueue) -> None:
    accounts = pa.table({"account": ["ATL", "BOS", None]})
    for replaced, found in (([None], 1), (["BOS", None], 1), (["ATL"], 1), ([], 2)):
        prepare(queue)
        with consume(queue, None, SALES, key="k") as work:
            kept = [name for name in accounts["account"].to_pylist() if name in replaced or not replaced]
            part = pa.table({"account": pa.array(kept, pa.string())})
            work.write_sql(part, table(queue, "maybe"), replace={"account": replaced})
        assert max(n for (n,) in rows(queue, "SELECT count(*) FROM {s}.maybe GROUP BY account")) == found
    assert rows(queue, "SELECT account, count(*) FROM {s}.maybe GROUP BY 1 ORDER BY 1") == [
        ("ATL", 2),
        ("BOS", 2),
        (None, 2),
    ]


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize(
    ("replace", "said"),
    [
        ({"account": [1, 2]}, "by 'account', which is text, with the values .1, 2.: operator does not exist: text ="),
        ({"n": DAYS}, "by 'n', which is bigint, with the values .* operator does not exist: bigint = date"),
        ({"day": ["today, perhaps"]}, "by 'day', which is date, with the values .'today, perhaps'.: .*Give values of"),
        ({"account": ["ATL", 1]}, "by 'account', which is text, with the values .'ATL', 1.: "),
        ({"account": [object()]}, "by 'account', which is text, with the values .*: cannot adapt type 'object'"),
    ],
)
def test_values_of_another_type_than_the_column_are_refused_before_a_row_is_computed(
    queue: SqlQueue, session: SparkSession, replace: dict[str, Any], said: str, made: bool
) -> None:
    prepare(queue)
    if made:
        rows(queue, "CREATE TABLE {s}.typed (day date, account text, n bigint)")
    columns = ("date'2013-07-04' AS day", "'ATL' AS account", "CAST(raise_error('it was computed') AS bigint) AS n")
    frame = session.range(1).selectExpr(*columns)
    with pytest.raises(InvalidInput, match=said), consume(queue, session, SALES, key="k") as work:
        work.write_sql(frame, table(queue, "typed"), replace=replace)
    assert endings(queue) == []


@pytest.mark.parametrize(
    "name", ["sum(CASE WHEN (amount > 1000000) THEN amount ELSE 0 END) AS much", "ä" * 32, "", "a\0"]
)
def test_a_name_that_the_database_would_cut_is_refused_before_a_table_is_made(queue: SqlQueue, name: str) -> None:
    prepare(queue)
    with (
        pytest.raises(InvalidInput, match=r"has 1 to 63, and no NUL\. Give it an alias"),
        consume(queue, None, SALES, key="k") as work,
    ):
        work.write_sql(pa.table({"ä" * 31: [1], name: [1]}), table(queue, "named"))
    assert rows(queue, "SELECT to_regclass('{s}.named')") == [(None,)]


def test_a_table_is_the_same_by_its_other_name(queue: SqlQueue, url: str) -> None:
    prepare(queue)
    path = make_url(url).update_query_dict({"options": f'-c search_path="{queue.database.schema}"'})
    with (  # noqa: PT012
        pytest.raises(InvalidInput, match="'aliased' was written before"),
        SqlQueue(path.render_as_string(hide_password=False), schema=queue.database.schema) as there,
        consume(there, None, SALES, key="k") as work,
    ):
        work.write_sql(of_days(*DAYS), table(queue, "aliased"))
        work.write_sql(of_days(*DAYS), "aliased", replace={"day": DAYS})


@pytest.mark.parametrize("mode", Mode)
def test_a_constraint_that_is_checked_at_the_end_names_its_table(queue: SqlQueue, output: Path, mode: Mode) -> None:
    rows(queue, "CREATE TABLE {s}.accounts_of (n bigint PRIMARY KEY)")
    rows(queue, "CREATE TABLE {s}.deferred (n bigint REFERENCES {s}.accounts_of DEFERRABLE INITIALLY DEFERRED)")
    one = pa.table({"n": [1]})
    prepare(queue)
    with (
        pytest.raises(InvalidInput, match=r"deferred' does not take the results: .*violates foreign key .*_n_fkey"),
        consume(queue, None, SALES, key="k", mode=mode) as work,
    ):
        work.write_sql(one, table(queue, "deferred"))
    assert endings(queue) == []
    with consume(queue, None, SALES, key="k", mode=mode) as work:
        work.write_sql(one, table(queue, "deferred"))
        work.write_sql(one, table(queue, "accounts_of"))
    assert rows(queue, "SELECT n FROM {s}.deferred") == [(1,)]


def test_a_value_that_is_too_long_for_an_index_names_its_table(queue: SqlQueue) -> None:
    prepare(queue)
    long = "".join(hashlib.sha256(bytes([n])).hexdigest() for n in range(250))
    with (
        pytest.raises(InvalidInput, match="long_keys' does not take the results: index row requires"),
        consume(queue, None, SALES, key="k") as work,
    ):
        work.write_sql(pa.table({"account": [long]}), table(queue, "long_keys"), key=["account"])
    assert endings(queue) == []


@pytest.fixture
def staff(url: str) -> Iterator[Staff]:
    with staffed(url, SALES) as staff:
        yield staff


def test_a_table_of_others_takes_what_its_rights_allow_and_the_error_names_the_others(
    staff: Staff, session: SparkSession, output: Path
) -> None:
    owner, queue, user = staff.owner, staff.users[Role.CONSUMER], f'"{staff.user(Role.CONSUMER)}"'
    place = f"{staff.schema}_theirs"  # dropped with what is named after the schema
    totals, frame = f"{place}.totals", session.range(1).selectExpr("DATE '2013-01-01' AS day", "id AS n")
    one = pa.table({"day": pa.array(DAYS[:1], pa.date32()), "n": [0]})
    rows(owner, f'CREATE ROLE "{place}"')
    rows(owner, f'CREATE SCHEMA "{place}" AUTHORIZATION "{place}"')
    rows(owner, f'CREATE TABLE "{place}".totals (day date, n bigint)')

    def grant(rights: str, where: str = f'"{place}".totals') -> None:
        rows(owner, f"GRANT {rights} ON {where} TO {user}")

    def write(what: Any = one, name: str = totals, **how: Any) -> None:
        owner.enqueue_many(SALES, [Sale(day=DAYS[0], account="ATL", amount=1)])
        with consume(queue, session, SALES, key="k", writes={name: "day date, n bigint"}) as work:
            work.write_sql(what, name, **how)

    def refused(said: str, what: Any = one, name: str = totals, **how: Any) -> None:
        with pytest.raises(OutputNotWritable, match=said):
            write(what, name, **how)

    replacing = {"replace": {"day": DAYS[:1]}}
    refused(f"may not use schema '{place}'. Grant USAGE on it")
    grant("USAGE", f'SCHEMA "{place}"')
    refused("may not write to it. Grant INSERT on it")
    grant("DELETE")
    refused("may not write to it. Grant INSERT on it")
    grant("INSERT")
    write()
    refused("cannot be replaced by 'day': .* Grant SELECT on it", **replacing)
    with pytest.raises(OutputNotWritable, match="Grant SELECT"):
        result_columns.check_days(queue, totals, ["day"])
    grant("SELECT (day)")
    write(**replacing)
    rows(owner, f'REVOKE DELETE ON "{place}".totals FROM {user}')
    refused("Grant DELETE and SELECT on it", **replacing)
    grant("DELETE")
    rows(owner, f'ALTER TABLE "{place}".totals ENABLE ROW LEVEL SECURITY')
    with pytest.raises(InvalidInput, match=r"totals' does not take the results: new row violates row-level security"):
        write()
    rows(owner, f'CREATE POLICY open_to_some ON "{place}".totals USING (n < 5)')
    with pytest.raises(InvalidInput, match=r"totals' does not take the results: new row violates row-level security"):
        write(one.set_column(1, "n", [[5]]))
    write(**replacing)
    assert rows(owner, f'SELECT n FROM "{place}".totals') == [(0,)]
    rows(owner, f'ALTER TABLE "{place}".totals DISABLE ROW LEVEL SECURITY')
    refused("may not make it in schema '.*'. Make the table, or grant CREATE", name=f"{place}.others")
    refused(f"tasks cannot stage rows .* may not create tables in schema '{place}'. Grant CREATE", frame, by_tasks=True)
    # The queue's own schema does as well, where the user is its owner, say.
    for where in (staff.schema, place):
        grant("CREATE", f'SCHEMA "{where}"')
        write(frame, by_tasks=True, **replacing)
        rows(owner, f'REVOKE CREATE ON SCHEMA "{where}" FROM {user}')
    assert rows(owner, f'SELECT count(*) FROM "{place}".totals') == [(1,)]
    rows(owner, f'ALTER TABLE "{place}".totals ENABLE ROW LEVEL SECURITY')
    grant("CREATE", f'SCHEMA "{place}"')
    owner.enqueue_many(SALES, [Sale(day=DAYS[0], account="ATL", amount=1)])
    with (
        pytest.raises(InvalidInput, match=r"COPY FROM not supported with row-level.* by_tasks=False"),
        consume(queue, session, SALES, key="k", mode=Mode.TRANSACTIONAL) as work,
    ):
        work.write_sql(frame, totals, by_tasks=True)
    # What the error says.
    with consume(queue, session, SALES, key="k", mode=Mode.LEASED) as work:
        assert work.write_sql(frame, totals, by_tasks=True) == 1
    assert rows(owner, f'SELECT count(*) FROM "{place}".totals') == [(2,)]
    assert left_behind(owner, output) == []
