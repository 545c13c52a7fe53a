"""The verbs about topics and schedules, as attempts of somebody with one role."""

import asyncio
from typing import Any

from psycopg import AsyncConnection

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.schedules import Schedules
from dagster_sqlqueue.topics import Topics
from tests.roles.desk import B, Desk, O, P, verb
from tests.support import Work


@verb(P, O)
def publish(queue: SqlQueue, desk: Desk) -> Any:
    assert Topics(queue).publish(desk.topic(), {"n": 1}).jobs


@verb(P, O)
def publish_many_with_ids(queue: SqlQueue, desk: Desk) -> Any:
    assert Topics(queue).publish_many(desk.topic(), [{"n": n} for n in range(3)]).messages == 3


@verb(P, O)
def apublish(queue: SqlQueue, desk: Desk) -> Any:
    topic = desk.topic()

    async def put() -> None:
        async with await AsyncConnection.connect(desk.url) as connection:
            await Topics(queue).apublish(topic, {"n": 1}, connection=connection)
            await Topics(queue).apublish_many(topic, [{"n": 1}], connection=connection)

    asyncio.run(put())


@verb(O)
def subscribe(queue: SqlQueue, desk: Desk) -> Any:
    Topics(queue).subscribe(f"t.{desk.name}", "mine", desk.name)


@verb(O)
def unsubscribe(queue: SqlQueue, desk: Desk) -> Any:
    Topics(queue).unsubscribe(desk.topic(), "all")


@verb(P, O, B)
def subscriptions(queue: SqlQueue, desk: Desk) -> Any:
    assert len(Topics(queue).subscriptions(desk.topic())) == 1


@verb(O)
def put_a_schedule(queue: SqlQueue, desk: Desk) -> Any:
    Schedules(queue).put(desk.spec, "nightly", Work(n=1), cron="0 2 * * *")


@verb(O, B)
def read_schedules(queue: SqlQueue, desk: Desk) -> Any:
    name = desk.schedule()
    schedules = Schedules(queue)
    assert schedules.schedule(desk.name, name) in schedules.schedules(desk.name)
    assert len(schedules.next_ticks(desk.name, name, 2)) == 2
    schedules.seconds_to_wait()


@verb(O)
def pause_and_resume_a_schedule(queue: SqlQueue, desk: Desk) -> Any:
    name = desk.schedule()
    Schedules(queue).pause(desk.name, name)
    Schedules(queue).resume(desk.name, name)


@verb(O)
def remove_a_schedule(queue: SqlQueue, desk: Desk) -> Any:
    Schedules(queue).remove(desk.name, desk.schedule())


@verb(O)
def tick(queue: SqlQueue, desk: Desk) -> Any:
    desk.schedule(due=True)
    Schedules(queue).tick()
    assert desk.owner.depth(desk.name).live == 1
