"""Human work on every server: taken once, reviewed by somebody else, and a history that replays."""

from uuid_utils.compat import uuid7

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.people import HumanWork, Stage, replay
from dagster_sqlqueue.queue.selection import Selection
from tests.support import Work


def test_from_the_rule_to_the_history(queues: SqlQueue) -> None:
    spec = QueueSpec("people_work", Work, bucket_count=4)
    queues.create_queue(spec)
    people = HumanWork(queues)
    people.set_rule(spec.name, automatic_percent=0, always_people={"n": 1}, four_eyes=True)
    ids = [uuid7() for _ in range(40)]
    queues.enqueue_many(spec, [NewJob(Work(n=n), id=id) for n, id in enumerate(ids)])
    assert set(people.route(spec.name, by="router", limit=30).changed) < set(ids)
    queues.hold_queued(spec.name, Selection(all=True), "look")
    assert len(people.adopt(spec.name, by="clerk")) == 10

    taken = [task.id for name in ("anna", "bert") for task in people.take(name, spec.name, limit=20)]
    assert sorted(taken) == sorted(ids)
    people.hold(taken[:5], by="anna")
    people.resume(taken[:5], by="anna")
    people.reschedule(taken[:5], 60, by="anna")
    assert [task.id for task in people.my_jobs("anna", queue=spec.name)][-5:] == sorted(taken[:5])
    people.give_back(taken[18:20], by="anna")
    people.submit(taken[:18], "anna", {"by": "anna"})
    people.unassign(taken[20:22], by="bert")
    people.assign(taken[22:24], "carl", by="boss")
    people.reject(taken[:2], by="bert", reason="no", reopen=True)
    people.approve(taken[2:18], by="bert")
    queues.cancel(spec.name, Selection(ids=[taken[39]]))
    people.adopt(spec.name, by="clerk")

    stages = {id: replay(people.history(id)) for id in taken}
    ended = {Stage.DONE: "succeeded", Stage.GIVEN_BACK: "queued", Stage.WITHDRAWN: "cancelled"}
    for id, state in stages.items():
        assert state is not None
        if state.stage in ended:
            assert queues.job(id).state == ended[state.stage]
        else:
            assert people.task(id).state == state
    counted = [state.stage for state in stages.values() if state]
    assert [counted.count(stage) for stage in Stage] == [4, 17, 0, 16, 2, 1]
