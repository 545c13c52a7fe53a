"""The functions, too, put no job on its queue again that has ended."""

import psycopg
import pytest

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.topics import Topics
from tests.api.conftest import OWN, Caller
from tests.support import value

PAYLOAD = "'{{\"n\": 1}}'"
CALLS = {
    "enqueue": f"SELECT {{v1}}.enqueue('work', {PAYLOAD}, id => '{OWN}')",
    "enqueue, replacing": (
        f"SELECT {{v1}}.enqueue('work', {PAYLOAD}, unique_key => 'u', on_duplicate => 'replace', id => '{OWN}')"
    ),
    "enqueue_many": f"SELECT {{v1}}.enqueue_many('work', ARRAY[jsonb {PAYLOAD}], ids => ARRAY[uuid '{OWN}'])",
    "enqueue_many, replacing": (
        f"SELECT {{v1}}.enqueue_many('work', ARRAY[jsonb {PAYLOAD}], ids => ARRAY[uuid '{OWN}'], unique_keys => '{{{{u}}}}',"
        " on_duplicate => 'replace')"
    ),
    "publish": f"SELECT * FROM {{v1}}.publish('orders', {PAYLOAD}, id => '{OWN}')",
}


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_snapshot_that_may_hide_a_jobs_end_takes_no_ids(
    line: SqlQueue, sqlc: Caller, any_server: str, call: str, level: str
) -> None:
    Topics(line).subscribe("orders", "worker", "work")
    with psycopg.connect(any_server) as other:
        old = Caller(other, sqlc.schema)
        other.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        other.execute("SELECT 1")
        sqlc.rows(call)
        ((job, lease, _),) = sqlc.claim()
        sqlc.value("SELECT {v1}.complete(%s, %s)", job, lease)
        said = old.refused("SQ004", call)
        assert (str(OWN) in said, level in said) == (True, True)
        other.rollback()
        other.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        old.refused("SQ004", call)
    assert line.depth("work").live == 0
    assert value(line, "SELECT count(*) FROM {s}.job_archive") == 1


def test_ids_of_the_functions_own_go_in_under_any_snapshot(line: SqlQueue, sqlc: Caller, any_server: str) -> None:
    Topics(line).subscribe("orders", "worker", "work")
    with psycopg.connect(any_server) as other:
        other.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        producer = Caller(other, sqlc.schema)
        for more in ("", ", unique_key => 'u'", ", unique_key => 'u', on_duplicate => 'replace'"):
            assert producer.value(f"SELECT {{v1}}.enqueue('work', {PAYLOAD}{more})")
        assert producer.value(f"SELECT {{v1}}.enqueue_many('work', ARRAY[jsonb {PAYLOAD}])")
        assert producer.rows(f"SELECT * FROM {{v1}}.publish('orders', {PAYLOAD})")
    assert line.depth("work").live == 4
