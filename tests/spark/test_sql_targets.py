"""Tables that results are written to: their names, rights and columns, and what is written to one of them twice."""

from datetime import date
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy.engine import make_url

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.consume_verbs import consume
from tests.spark.consuming_support import DAYS, SALES, endings, prepare
from tests.spark.totals import table
from tests.support import rows

SHARES_A_SCHEMA = True


def of_days(*days: date, account: str = "ATL") -> pa.Table:
    return pa.table(
        {"day": pa.array(days, pa.date32()), "account": pa.array([account] * len(days)), "n": list(range(len(days)))}
    )


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
