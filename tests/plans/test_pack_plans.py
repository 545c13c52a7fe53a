"""What packing, unpacking and finding packed jobs touches, beside 100,000 live jobs: packing reads the due jobs once, and
what goes by ids the packs that have them.
"""

from uuid import UUID, uuid4

import pytest

from tests.plans.conftest import JOBS
from tests.plans.explaining import PLAN_MODES as PLAN_MODES
from tests.plans.explaining import SLACK, Explainer

PACK = 200
PACK_PAGES = 40
"""Of one pack: its rows of the table, of the index, and of where long values are."""
PROBE = 8
"""Pages of an id in the packs' index, and in those beside it."""


def opened(explain: Explainer) -> UUID:
    batch = uuid4()
    explain.run(
        "INSERT INTO {s}.batch (id, key, queue, state, lease_until, owner)"
        " VALUES (%s, 'k', 'work', 'sealing', now() + interval '1 minute', 'w')",
        batch,
    )
    return batch


@pytest.fixture
def batch(explain: Explainer) -> UUID:
    """Half of the queue's due jobs are in packs, of two seals."""
    made = opened(explain)
    for buckets in ([0, 1, 2, 3], [4, 5, 6, 7]):
        explain.run("SELECT {s}.pack_batch(%s, 1, %s::smallint[], 60)", made, buckets)
    return made


def some(explain: Explainer, count: int) -> list[UUID]:
    return [id for (id,) in explain.run("SELECT id FROM {s}.packed_job ORDER BY md5(id::text) LIMIT %s", count)]


def test_packing(explain: Explainer) -> None:
    made = opened(explain)
    plan = explain("pack_batch", batch_id=made, token=1, buckets=[0, 1, 2, 3], lease_seconds=60.0)
    ((packed, packs),) = explain.run("SELECT sum(job_count), count(*) FROM {s}.batch_pack WHERE batch_id = %s", made)
    assert JOBS / 16 < packed <= 4 * JOBS / 16
    assert packs == -(-packed // PACK)
    # Each job once, and less than a page of a pack for it.
    assert plan.buffers <= 3 * packed + 4 * JOBS / 16 + SLACK


def test_unpacking_some(explain: Explainer, batch: UUID) -> None:
    plan = explain("unpack_jobs", batch_id=None, ids=some(explain, 5))
    ((unpacked,),) = explain.run("SELECT count(*) FROM {s}.job WHERE batch_id = %s", batch)
    assert 0 < unpacked <= 5 * PACK
    assert plan.buffers <= 30 * unpacked + 5 * (PACK_PAGES + PROBE) + SLACK


@pytest.mark.parametrize("count", [10, 1_000])
def test_unpacking_none(explain: Explainer, batch: UUID, count: int) -> None:
    """What every decision about jobs, and every report of a batch, asks for."""
    plan = explain("unpack_jobs", batch_id=batch, ids=[uuid4() for _ in range(count)])
    assert plan.buffers <= 2 * PROBE * count + SLACK


@pytest.mark.parametrize("verb", ["live_rows", "locate_jobs", "outcomes"])
def test_by_id(explain: Explainer, batch: UUID, verb: str) -> None:
    plan = explain(verb, ids=some(explain, 10), since="-infinity")
    assert plan.root["Actual Rows"] == 10
    assert plan.buffers <= 10 * (PACK_PAGES + 20 * PROBE) + SLACK


def test_ids_that_are_known(explain: Explainer, batch: UUID) -> None:
    plan = explain("known_ids", ids=[*some(explain, 10), *(uuid4() for _ in range(1_000))])
    assert plan.root["Actual Rows"] == 10
    assert plan.buffers <= 10 * PACK_PAGES + 1_010 * 20 * PROBE + SLACK


def test_a_list(explain: Explainer, batch: UUID) -> None:
    nothing = {"tags": [], "payload": None, "ordering_key": None, "error_contains": None, "since": None, "before": None}
    plan = explain("select_packed", queue="work", states=["running"], limit=50, **nothing)
    assert plan.root["Actual Rows"] == 50
    assert plan.buffers <= PACK_PAGES + SLACK
    of_none = explain("select_packed", queue="other", states=["running"], limit=50, **nothing)
    assert of_none.buffers <= SLACK
