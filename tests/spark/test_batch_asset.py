"""An asset of any queue: orders for each shop and week, with names, partitions and outcomes that no daily asset has."""

from collections.abc import Callable
from typing import Any

import dagster as dg
import pytest
from pydantic import BaseModel
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from dagster_sqlqueue import Backoff, Done, Hold, Job, Mode, QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.outcome import Outcome
from dagster_sqlqueue.spark.batch_asset import sqlqueue_batch_asset
from dagster_sqlqueue.spark.consumption import Consumption
from dagster_sqlqueue.spark.for_each import for_each_job
from tests.spark.archive_support import reason
from tests.support import rows

SHARES_A_SCHEMA = True


class Position(BaseModel):
    article: str
    cents: int


class Bestellung(BaseModel):
    filiale: str
    woche: str
    positionen: list[Position]


ORDERS = QueueSpec("bestellungen", Bestellung, bucket_count=4, backoff=Backoff(0, jitter=0))
WEEKS = ["2013-W26", "2013-W27", "2013-W28"]
BY_WEEK = dg.StaticPartitionsDefinition(WEEKS)
BY_SHOP_AND_WEEK = dg.MultiPartitionsDefinition(
    {"filiale": dg.StaticPartitionsDefinition(["Köln", "O'Hare"]), "woche": BY_WEEK}
)


def order(queue: SqlQueue, shop: str, week: str, *cents: int) -> None:
    positions = [Position(article=f"article {n}", cents=one) for n, one in enumerate(cents)]
    queue.enqueue(ORDERS, Bestellung(filiale=shop, woche=week, positionen=positions))


def revenue(work: Consumption, schema: str) -> dict[str, Any]:
    jobs = work.jobs()
    work.fail(jobs.where("size(positionen) = 0"), "nothing was ordered")
    work.retry(jobs.where("exists(positionen, p -> p.cents < 0)"), "not paid yet", after=3_600)
    good = jobs.where("size(positionen) > 0 AND forall(positionen, p -> p.cents >= 0)")
    lines = good.select("id", "filiale", "woche", sf.explode("positionen").alias("p")).select(
        "*", "p.article", "p.cents"
    )
    return {
        f"{schema}.umsatz": lines.groupBy("filiale", "woche").agg(sf.sum("cents").alias("cents")),
        f"{schema}.zeilen": lines.select("id", "article", "cents"),
    }


def made(queue: SqlQueue, compute: Callable[[Consumption, str], Any] = revenue, **changes: Any) -> dg.AssetsDefinition:
    settings: dict[str, Any] = {"partitions_def": BY_WEEK, "filter": lambda week: {"woche": week}, **changes}

    @sqlqueue_batch_asset(ORDERS, **settings)
    def umsatz(work: Consumption) -> Any:
        """The revenue of each shop and week."""
        return compute(work, queue.database.schema)

    return umsatz


def shown(done: dg.ExecuteInProcessResult) -> dict[str, dict[str, Any]]:
    events = done.asset_materializations_for_node("umsatz")
    return {str(one.partition): {name: value.value for name, value in one.metadata.items()} for one in events}


@pytest.fixture
def run(queue: SqlQueue, session: SparkSession, resources: dict[str, Any], instance: dg.DagsterInstance) -> Any:
    queue.create_queue(ORDERS)
    return lambda asset, **chosen: dg.materialize(
        [asset], resources=resources, instance=instance, raise_on_error=False, **chosen
    )


def sums(queue: SqlQueue) -> list[tuple[Any, ...]]:
    return rows(queue, "SELECT filiale, woche, CAST(sum(cents) AS bigint) FROM {s}.umsatz GROUP BY 1, 2 ORDER BY 2, 1")


def ended(queue: SqlQueue) -> list[tuple[str, int]]:
    return rows(queue, "SELECT state, count(*) FROM {s}.job_archive WHERE queue = 'bestellungen' GROUP BY 1 ORDER BY 1")


def left(queue: SqlQueue) -> list[tuple[Any, ...]]:
    return rows(queue, "SELECT payload->>'woche', state, attempt FROM {s}.job WHERE queue = 'bestellungen' ORDER BY 1")


def test_orders_of_each_shop_and_week(queue: SqlQueue, run: Any) -> None:
    for week in WEEKS:
        for shop in ("Köln", "O'Hare"):
            order(queue, shop, week, 100, 250)
            order(queue, shop, week, 1)
    order(queue, "Köln", WEEKS[1])
    order(queue, "Köln", WEEKS[1], -5)
    name = f"{queue.database.schema}."
    by_both = made(queue, partitions_def=BY_SHOP_AND_WEEK, filter=lambda key: dict(key.keys_by_dimension))
    done = run(by_both, partition_key=dg.MultiPartitionKey({"filiale": "Köln", "woche": WEEKS[1]}))
    assert done.success
    (of_both,) = shown(done).values()
    assert of_both == {
        "jobs_consumed": 4,
        "jobs_failed": 1,
        "jobs_retried": 1,
        f"rows/{name}umsatz": 1,
        f"rows/{name}zeilen": 3,
    }
    assert sums(queue) == [("Köln", WEEKS[1], 351)]
    assert ended(queue) == [("failed", 1), ("succeeded", 2)]
    assert [(state, attempt) for week, state, attempt in left(queue) if attempt] == [("queued", 1)]
    # The same queue by week, two of them in one run; what is done already is not done again.
    tags = {"dagster/asset_partition_range_start": WEEKS[0], "dagster/asset_partition_range_end": WEEKS[1]}
    done = run(made(queue), tags=tags)
    assert done.success
    assert {part: one["jobs_consumed"] for part, one in shown(done).items()} == {WEEKS[0]: 4, WEEKS[1]: 2}
    assert sums(queue) == [(shop, week, 351) for week in WEEKS[:2] for shop in ("Köln", "O'Hare")]
    assert [week for week, _, attempt in left(queue) if not attempt] == [WEEKS[2]] * 4
    # Without partitions: all that is due.
    done = run(made(queue, partitions_def=None, filter=None))
    assert shown(done)["None"]["jobs_consumed"] == 4
    assert ended(queue) == [("failed", 1), ("succeeded", 12)]


def test_a_function_that_raises_leaves_its_partition_due(queue: SqlQueue, run: Any) -> None:
    for week in WEEKS:
        order(queue, "Köln", week, 100)

    def bad(work: Consumption, schema: str) -> dict[str, Any]:
        if work.batch.key.endswith(WEEKS[1]):
            raise InvalidInput("not this week")
        return revenue(work, schema)

    tags = {"dagster/asset_partition_range_start": WEEKS[0], "dagster/asset_partition_range_end": WEEKS[2]}
    assert "not this week" in reason(run(made(queue, bad), tags=tags))
    assert sums(queue) == [("Köln", WEEKS[0], 100)]
    assert left(queue) == [(week, "queued", 0) for week in WEEKS[1:]]
    for odd, said in ((lambda *_: 5, "umsatz returned a int; it must return a mapping"), (lambda *_: None, "")):
        done = run(made(queue, odd), partition_key=WEEKS[2])
        assert done.success if not said else said in reason(done)
    assert left(queue) == [(WEEKS[1], "queued", 0)]
    for settings, said in (
        ({"filter": None}, "needs partitions_def and filter together, or neither"),
        ({"mode": "foo"}, "mode is 'foo'; it must be 'leased' or 'transactional'"),
        ({"lease_seconds": 0}, "lease_seconds is 0; it must be positive"),
    ):
        with pytest.raises(InvalidInput, match=said):
            made(queue, **settings)
    wrong = made(queue, filter=lambda week: {"week": week})
    assert "names the field 'week', which Bestellung does not have" in reason(run(wrong, partition_key=WEEKS[1]))


def paid(job: Job[Bestellung]) -> Outcome:
    cents = sum(position.cents for position in job.payload.positionen)
    return Done({"cents": cents}) if cents > 0 else Hold("not paid yet")


@pytest.mark.parametrize("first", ["for_each_job", "fail"])
def test_jobs_that_were_reported_are_not_counted_as_failed(queue: SqlQueue, run: Any, first: str) -> None:
    for cents in (100, -5):
        order(queue, "Köln", WEEKS[0], cents)

    def both(work: Consumption, schema: str) -> None:
        ids = [row["id"] for row in work.jobs().select("id").collect()]
        if first == "for_each_job":
            for_each_job(work, paid)
            assert (work.fail(ids[:1], "too late"), work.retry(ids[1:], "too late")) == (1, 1)
        else:
            assert work.fail(ids, "too late") == 2
            for_each_job(work, paid)

    done = run(made(queue, both, mode=Mode.LEASED), partition_key=WEEKS[0])
    assert done.success
    assert shown(done) == {WEEKS[0]: {"jobs_consumed": 2}}
    assert ended(queue) == [("succeeded", 1)]
    assert left(queue) == [(WEEKS[0], "held", 0)]
