"""Results in an object store that speaks S3's protocol, on the loopback device, through the client that users have."""

import logging
import signal
from collections.abc import Iterator
from typing import Any

import dagster as dg
import fsspec
import pytest
from pyspark.sql import SparkSession

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import OutputNotWritable
from dagster_sqlqueue.spark import outputs, remote
from dagster_sqlqueue.spark.consume_verbs import consume
from tests.gate.patience import PATIENCE
from tests.gate.plugin import note_figures
from tests.spark import daily_support, kill_driver
from tests.spark.asset_support import NOBODYS, Run, daily_asset, not_passed, shown
from tests.spark.consuming_support import SALES, prepare
from tests.spark.daily_support import DAYS, expected
from tests.spark.drivers import LOCK_SECONDS, Drivers, gone
from tests.support import make_due, rows

pytestmark = pytest.mark.prove

SHARES_A_SCHEMA = True

BUCKET = "results"
REQUEST = "S3FileSystem._call_s3"
"""What a step that is a request is called."""
SECRET = "a-secret-of-the-store"


@pytest.fixture(scope="module")
def store() -> Iterator[Any]:
    """A client of the store, which no cache of the library's is beside; the library finds the store by the environment."""
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    pytest.importorskip("s3fs")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (
            ("AWS_ENDPOINT_URL", f"http://{host}:{port}"),
            ("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE"),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_DEFAULT_REGION", "us-east-1"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ):
            environment.setenv(name, value)
        client = pytest.importorskip("boto3").client("s3")
        client.create_bucket(Bucket=BUCKET)
        yield client
        client.close()
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    server.stop()


@pytest.fixture
def output(store: Any) -> Iterator[str]:
    yield f"s3://{BUCKET}/the output"
    empty(store)


@pytest.fixture(scope="module")
def driver(store: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    drivers = Drivers(tmp_path_factory.mktemp("drivers"), "s3fs")
    yield drivers
    drivers.close()


def keys(store: Any) -> list[str]:
    """What is there, as a client sees it that has seen nothing before."""
    found = store.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    return [one["Key"].removeprefix("the output/") for one in found]


def empty(store: Any) -> None:
    for key in keys(store):
        store.delete_object(Bucket=BUCKET, Key=f"the output/{key}")


def emptied(queue: SqlQueue, store: Any) -> None:
    """Nothing is published, and the days' jobs are due."""
    tables = "TRUNCATE {s}.job, {s}.job_archive, {s}.batch, {s}.batch_outcome, {s}.batch_pack"
    rows(queue, f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'; {tables}; DROP TABLE IF EXISTS {{s}}.results")
    empty(store)
    daily_support.prepare(queue)


def put(store: Any, key: str) -> None:
    store.put_object(Bucket=BUCKET, Key=f"the output/{key}", Body=b"")


def placed(days: tuple[str, ...] = DAYS) -> list[str]:
    return [f"day={day}/part-0.parquet" for day in days]


def test_an_asset_writes_there_and_sees_what_others_do_to_it(
    queue: SqlQueue,
    session: SparkSession,
    store: Any,
    output: str,
    resources: dict[str, Any],
    instance: dg.DagsterInstance,
    caplog: pytest.LogCaptureFixture,
) -> None:
    daily_support.prepare(queue)
    run = Run(daily_asset(queue, output, output=lambda: output), resources, instance)
    with caplog.at_level(logging.DEBUG):
        done = run(DAYS[0], DAYS[-1])
    assert not_passed(done) == NOBODYS
    assert daily_support.wrong_in(queue, output) == []
    assert keys(store) == placed()
    again = run.without_spark()(DAYS[0], DAYS[-1])
    assert all(shown(again)[day]["unchanged"] for day in DAYS)
    # The library has listed these directories, and another process changes them.
    store.delete_object(Bucket=BUCKET, Key=f"the output/{placed()[0]}")
    assert not run.without_spark()(DAYS[0]).success
    for key in ("", "note.txt", "of/another.txt"):
        put(store, f"day={DAYS[0]}/{key}")
    assert not_passed(run(DAYS[0], recompute=True)) == NOBODYS
    assert daily_support.wrong_in(queue, output) == []
    assert keys(store) == [f"day={DAYS[0]}/", *placed()]
    texts = [caplog.text, str(rows(queue, "SELECT output FROM {s}.batch"))]
    texts += [str(one) for found in (done, again) for one in found.all_events]
    texts += [str(one) for found in (done, again) for one in instance.all_logs(found.run_id)]
    assert output in texts[1]
    assert not [one for one in texts if SECRET in one]


@pytest.mark.timeout(20 * PATIENCE)
def test_a_run_that_is_killed_at_any_request_is_finished_by_another_process(
    driver: Drivers, queue: SqlQueue, url: str, store: Any, output: str
) -> None:
    """From the first check of the directory until nothing is staged."""
    daily_support.prepare(queue)
    assert driver(queue, url, output, kill_driver.DAILY, None) == 0
    assert daily_support.wrong_in(queue, output) == []
    _, *steps = driver.log.read_text().split()
    points = [number for number, step in enumerate(steps, 1) if step == REQUEST]
    published = []
    for last in points:
        emptied(queue, store)
        assert driver(queue, url, output, kill_driver.DAILY, last) == -signal.SIGKILL
        gone(queue)
        there = daily_support.in_table(queue)
        assert there in ([], expected(DAYS)), last
        published.append(bool(there))
        make_due(queue)
        assert driver(queue, url, output, kill_driver.DAILY, None) == 0
        assert daily_support.wrong_in(queue, output) == [], (last, published)
        assert keys(store) == placed(), (last, published)
    note_figures(requests=len(points), after_the_publication=sum(published))
    assert published == sorted(published)
    assert 5 < sum(published) < len(points) - 5


def test_a_killed_run_is_finished_by_the_asset(
    driver: Drivers,
    queue: SqlQueue,
    url: str,
    session: SparkSession,
    store: Any,
    output: str,
    resources: dict[str, Any],
    instance: dg.DagsterInstance,
) -> None:
    daily_support.prepare(queue)
    assert driver(queue, url, output, kill_driver.DAILY, None) == 0
    _, *steps = driver.log.read_text().split()
    emptied(queue, store)
    last = max(number for number, step in enumerate(steps, 1) if step == REQUEST) - 4
    assert driver(queue, url, output, kill_driver.DAILY, last) == -signal.SIGKILL
    gone(queue)
    assert rows(queue, "SELECT DISTINCT state, unmoved FROM {s}.batch") == [("published", True)]
    assert any(key.startswith(outputs.STAGING) for key in keys(store))
    run = Run(daily_asset(queue, output, output=lambda: output, name="test"), resources, instance)
    assert not_passed(run(DAYS[0], DAYS[-1])) == NOBODYS
    assert daily_support.wrong_in(queue, output) == []
    assert keys(store) == placed()


def test_what_another_process_staged_and_removed_is_known(store: Any, output: str) -> None:
    staging = f"{output}/{outputs.STAGING}"
    put(store, f"{outputs.STAGING}/one/file")
    assert remote.names_in(staging) == ["one"]
    put(store, f"{outputs.STAGING}/two/file")
    assert remote.names_in(staging) == ["one", "two"]
    remote.remove(f"{staging}/two")
    assert keys(store) == [f"{outputs.STAGING}/one/file"]


@pytest.mark.parametrize(
    ("place", "changed", "said"),
    [
        ("s3://no-such-bucket/x", {}, "results cannot be written to s3://no-such-bucket/x: .*bucket does not exist"),
        (
            f"s3://{BUCKET}/x",
            {"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None},
            "Unable to locate credentials",
        ),
        (f"s3://{BUCKET}/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, "Could not connect to the endpoint URL"),
    ],
)
def test_a_store_that_cannot_be_written_to_seals_nothing(
    queue: SqlQueue,
    store: Any,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    changed: dict[str, str | None],
    said: str,
) -> None:
    prepare(queue)
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    for name, value in changed.items():
        monkeypatch.setenv(name, value) if value else monkeypatch.delenv(name)
    with pytest.raises(OutputNotWritable, match=said) as raised, consume(queue, None, SALES, key="k", writes=[place]):
        pass
    fsspec.get_filesystem_class("s3").clear_instance_cache()
    assert SECRET not in str(raised.value)
    assert rows(queue, "SELECT DISTINCT state FROM {s}.job") == [("queued",)]
