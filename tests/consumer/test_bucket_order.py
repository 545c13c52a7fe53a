"""The order in which a consumer searches its buckets."""

from dataclasses import replace

import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.consumer.bucket_order import BucketOrder
from dagster_sqlqueue.model.queue import QueueSettings
from tests.support import Work


@pytest.fixture
def settings(queue: SqlQueue, spec: QueueSpec[Work]) -> QueueSettings:
    queue.create_queue(replace(spec, name="wide", bucket_count=16))
    return queue.settings("wide")


def arranged(settings: QueueSettings, *, buckets: list[int] | None = None, region: str | None = None) -> BucketOrder:
    order = BucketOrder(buckets, region)
    order.arrange(settings)
    return order


@pytest.mark.parametrize("buckets", [None, [3, 5, 7, 11]])
def test_each_consumer_begins_somewhere_and_goes_on_from_there(
    settings: QueueSettings, buckets: list[int] | None
) -> None:
    of = buckets or list(range(16))
    orders = [arranged(settings, buckets=buckets).order for _ in range(200)]
    # That a bucket is the first of none of 200 has a probability of 16 * (15 / 16) ** 200: less than one in 20,000.
    assert {order[0] for order in orders} == set(of)
    for order in orders:
        place = of.index(order[0])
        assert order == of[place:] + of[:place]


def test_each_bucket_has_its_turn(settings: QueueSettings) -> None:
    order = arranged(settings)
    firsts = []
    for _ in range(16):
        firsts.append(order.order[0])
        order.turn(after=order.order[0])
    assert sorted(firsts) == list(range(16))


def test_settings_that_are_read_again_leave_the_turn_where_it_is(settings: QueueSettings) -> None:
    order = arranged(settings)
    order.turn(after=order.order[4])
    before = order.order
    order.arrange(settings)
    assert order.order == before
    order.arrange(replace(settings, bucket_count=20, claim_buckets=20))
    assert order.order == [*before, 16, 17, 18, 19]


def test_buckets_of_the_region_come_first(settings: QueueSettings) -> None:
    regions = ["north" if number % 3 == 0 else "south" for number in range(16)]
    for _ in range(50):
        order = arranged(replace(settings, regions=tuple(regions)), region="north").order
        assert sorted(order[:6]) == [0, 3, 6, 9, 12, 15]
        assert sorted(order) == list(range(16))
