"""The verbs about people's tasks, as attempts of somebody with one role."""

from typing import Any

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.people import HumanWork
from tests.roles.desk import B, C, Desk, O, verb


@verb(O)
def hand_over_to_people(queue: SqlQueue, desk: Desk) -> Any:
    desk.filled(1)
    assert HumanWork(queue).hand_over(desk.name, desk.all, by="boss", reason="look").changed


@verb(O)
def adopt_what_is_held(queue: SqlQueue, desk: Desk) -> Any:
    id = desk.held()
    assert HumanWork(queue).adopt(desk.name, by="boss") == [id]


@verb(O)
def take_and_submit(queue: SqlQueue, desk: Desk) -> Any:
    desk.task()
    people = HumanWork(queue)
    (task,) = people.take("ann", desk.name)
    people.submit(task.id, "ann", {"a": 1})
    people.approve(task.id, by="boss")


@verb(O)
def reject(queue: SqlQueue, desk: Desk) -> Any:
    HumanWork(queue).reject(desk.task(done=True), by="boss", reason="again")


@verb(O)
def give_back(queue: SqlQueue, desk: Desk) -> Any:
    HumanWork(queue).give_back(desk.task(taken=True), by="ann")


@verb(O)
def steps_of_people(queue: SqlQueue, desk: Desk) -> Any:
    id = desk.task()
    people = HumanWork(queue)
    people.assign(id, "ann", by="boss")
    people.unassign(id, by="boss")
    people.hold(id, by="boss")
    people.resume(id, by="boss")
    people.reschedule(id, 60.0, by="boss")


@verb(O, B)
def read_tasks(queue: SqlQueue, desk: Desk) -> Any:
    id = desk.task(taken=True)
    people = HumanWork(queue)
    assert people.task(id).id == id
    assert people.tasks(desk.name, "assigned")
    assert people.my_jobs("ann", queue=desk.name)


@verb(C, O, B)
def history_of_a_job(queue: SqlQueue, desk: Desk) -> Any:
    assert len(HumanWork(queue).history(desk.task())) == 1


@verb(O)
def set_a_rule(queue: SqlQueue, desk: Desk) -> Any:
    HumanWork(queue).set_rule(desk.name, automatic_percent=50)


@verb(O)
def route(queue: SqlQueue, desk: Desk) -> Any:
    HumanWork(desk.owner).set_rule(desk.name, automatic_percent=0)
    desk.filled(1)
    assert HumanWork(queue).route(desk.name, by="rule").changed


@verb(C, O, B)
def ask_whether_a_job_is_automatic(queue: SqlQueue, desk: Desk) -> Any:
    (id,) = desk.filled(1)
    HumanWork(queue).rule(desk.name)
    assert HumanWork(queue).is_automatic(desk.owner.job(id))
