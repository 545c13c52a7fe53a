"""Results in directories that are none of this machine's: staged beside their place, and moved by whatever process gets
there.
"""

import io
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any
from uuid import uuid4

import dagster as dg
import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from upath import UPath

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput, OutputNotWritable
from dagster_sqlqueue.spark import outputs, published, remote
from dagster_sqlqueue.spark.consume_verbs import consume
from tests.spark import daily_support
from tests.spark.asset_support import NOBODYS, Run, daily_asset, not_passed, shown
from tests.spark.consuming_support import DAYS, SALES, endings, prepare
from tests.support import rows

SHARES_A_SCHEMA = True

COLUMNS = {"day": {"path": "payload.day", "type": "date"}, "amount": {"path": "payload.amount", "type": "bigint"}}


class Cut(Exception):
    """Ends a process, as far as the test goes."""


@pytest.fixture
def output() -> Iterator[str]:
    """A place in a file system without renaming and without empty directories."""
    url = f"memory://{uuid4().hex}/results"
    yield url
    remote.remove(url)


def run(queue: SqlQueue, output: str, days: tuple[date, ...] = DAYS) -> None:
    with consume(queue, None, SALES, key="k", writes=[output]) as work:
        found = work.arrow(COLUMNS).drop_columns(["id", "attempt", "created_at"])
        work.write_parquet(found, output, partition_by="day", values=days)


def in_place(output: str, column: str = "amount") -> dict[str, list[int]]:
    """The amounts in each directory; without those that are staged."""
    found: dict[str, list[int]] = {}
    for directory in UPath(output).iterdir():
        if not directory.name.startswith("."):
            read = [pq.read_table(io.BytesIO(file.read_bytes())) for file in directory.glob("*.parquet")]
            found[directory.name] = sorted(n for table in read for n in table[column].to_pylist())
    return found


def left(output: str) -> list[str]:
    return remote.names_in(f"{output}/{outputs.STAGING}")


def unmoved(queue: SqlQueue) -> list[bool]:
    return [row[0] for row in rows(queue, "SELECT unmoved FROM {s}.batch ORDER BY created_at")]


def of_day(queue: SqlQueue, day: date) -> list[int]:
    found = rows(
        queue,
        "SELECT (payload ->> 'amount')::bigint FROM {s}.job_archive WHERE payload ->> 'day' = %s",
        day.isoformat(),
    )
    return sorted(n for (n,) in found)


def test_files_are_staged_and_moved_where_nothing_can_be_renamed(queue: SqlQueue, output: str) -> None:
    prepare(queue)
    run(queue, output, (*DAYS, date(2013, 1, 3)))
    assert endings(queue) == [("succeeded", 30, 30)]
    expected = {f"day={day}": of_day(queue, day) for day in DAYS}
    assert in_place(output) == {**expected, "day=2013-01-03": []}
    assert (left(output), unmoved(queue)) == ([], [False])
    names = [day.isoformat() for day in DAYS]
    seen = published.in_files(output, [*names, "2013-01-03", "2013-01-04"], account=None, counted="amount")
    assert {day: (one.rows, one.total) for day, one in seen.items()} == {
        **{day.isoformat(): (15, sum(of_day(queue, day))) for day in DAYS},
        "2013-01-03": (0, 0),
    }
    # A day that is written again is replaced as a whole.
    for name in "old.parquet", "more/old.parquet", f"day={DAYS[0]}/old.parquet":
        UPath(f"{output}/day={DAYS[0]}/{name}").parent.mkdir(exist_ok=True)
        UPath(f"{output}/day={DAYS[0]}/{name}").write_bytes(b"")
    prepare(queue, 2)
    run(queue, output)
    assert in_place(output) == {"day=2013-01-01": [1], "day=2013-01-02": [2], "day=2013-01-03": []}
    assert len(remote.names_in(f"{output}/day={DAYS[0]}")) == 1


@pytest.mark.parametrize("at", range(6))
def test_a_move_that_is_cut_anywhere_is_done_by_the_next_run(
    queue: SqlQueue, output: str, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Before the first file is copied, after it, and so on, until the list of what is staged is gone."""
    prepare(queue)
    calls = 0

    def counted(original: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > at:
                raise Cut
            return original(*arguments, **keywords)

        return call

    memory = fsspec.filesystem("memory")
    with monkeypatch.context() as cutting:
        for name in ("cp_file", "rm", "rm_file"):
            cutting.setattr(type(memory), name, counted(getattr(type(memory), name)))
        cutting.setattr(remote, "writable", remote.named)
        with pytest.raises(Cut):
            run(queue, output)
    assert unmoved(queue) == [True]
    assert endings(queue) == [("succeeded", 30, 30)]
    with consume(queue, None, SALES, key="k") as work:
        assert work.job_count == 0
    assert in_place(output) == {f"day={day}": of_day(queue, day) for day in DAYS}
    assert (left(output), unmoved(queue)) == ([], [False, False])


def test_a_place_that_cannot_be_reached_leaves_the_files_known_as_unmoved(
    queue: SqlQueue, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(queue)

    def away(staged: str, output: str) -> None:
        raise ConnectionError("no route to the store")

    with monkeypatch.context() as cutting:
        cutting.setattr(remote, "move_into_place", away)
        with pytest.raises(ConnectionError):
            run(queue, output)
        with consume(queue, None, SALES, key="k"):
            assert unmoved(queue) == [True, False]
    with consume(queue, None, SALES, key="k"):
        assert unmoved(queue)[0] is False
    assert in_place(output) == {f"day={day}": of_day(queue, day) for day in DAYS}


def test_what_was_staged_and_not_published_is_removed(queue: SqlQueue, output: str) -> None:
    prepare(queue)
    with pytest.raises(Cut), consume(queue, None, SALES, key="k") as work:  # noqa: PT012
        work.write_parquet(pa.table({"amount": [1]}), output)
        assert len(left(output)) == 1
        raise Cut
    assert left(output) == []
    UPath(f"{output}/{outputs.STAGING}/{outputs.fingerprint('k')}-killed").mkdir(parents=True)
    run(queue, output)
    assert left(output) == []


def test_a_place_that_goes_away_hides_no_error_of_the_block(
    queue: SqlQueue, output: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prepare(queue)

    def away(url: str) -> None:
        raise RuntimeError("the store's client has lost its way")

    with monkeypatch.context() as cutting, pytest.raises(Cut), consume(queue, None, SALES, key="k") as work:  # noqa: PT012
        work.write_parquet(pa.table({"amount": [1]}), output)
        cutting.setattr(remote, "remove", away)
        raise Cut
    assert "cannot be removed: the store's client has lost its way" in caplog.text
    assert len(left(output)) == 1
    assert rows(queue, "SELECT DISTINCT state FROM {s}.job") == [("queued",)]
    run(queue, output)
    assert left(output) == []


@pytest.mark.parametrize(
    ("place", "error", "said"),
    [
        ("nosuch://bucket/x", OutputNotWritable, "results cannot be written to nosuch://bucket/x"),
        ("s3://key:secret@bucket/x", InvalidInput, "the URL of s3://bucket holds a password"),
    ],
)
def test_a_place_that_cannot_be_written_to_seals_nothing(
    queue: SqlQueue, place: str, error: type[Exception], said: str
) -> None:
    prepare(queue)
    with pytest.raises(error, match=said) as raised:
        run(queue, place)
    assert "secret" not in str(raised.value)
    assert rows(queue, "SELECT DISTINCT state FROM {s}.job") == [("queued",)]


def test_an_asset_writes_there_and_looks_at_what_it_wrote(
    queue: SqlQueue, session: SparkSession, output: str, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    daily_support.prepare(queue)
    made = Run(daily_asset(queue, Path(), output=lambda: output), resources, instance)
    done = made(daily_support.DAYS[0], daily_support.DAYS[-1])
    assert not_passed(done) == NOBODYS
    assert sorted(in_place(output, "events")) == [f"day={day}" for day in daily_support.DAYS]
    assert left(output) == []
    again = made.without_spark()(daily_support.DAYS[0], daily_support.DAYS[-1])
    assert all(shown(again)[day]["unchanged"] for day in daily_support.DAYS)


def test_a_file_url_is_a_directory_of_this_machine(tmp_path: Path) -> None:
    assert remote.named(f"file://{tmp_path}/x") == tmp_path / "x"
