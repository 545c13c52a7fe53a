"""Launchpad jobs for which nothing was chosen: they show what there is, change nothing, and do not fail."""

from typing import Any

import pytest

from dagster_sqlqueue import NewJob, QueueSpec, SqlQueue
from dagster_sqlqueue.orchestration.launchpad import VERBS
from dagster_sqlqueue.people import HumanWork
from tests.orchestration.launchpad_support import Launchpad, everything
from tests.orchestration.support import Deployment
from tests.people.support import handed_over
from tests.support import Work
from tests.support.decisions import PLAIN, kill, put, take

OTHER = QueueSpec("other", Work)


@pytest.fixture
def filled(queue: SqlQueue) -> SqlQueue:
    """A queue with jobs in every state, and tasks of people; and an empty one."""
    queue.create_queue(OTHER)
    put(queue, PLAIN, 3)
    kill(queue, 3)
    put(queue, PLAIN, 2)
    queue.complete(take(queue, 1))
    take(queue, 1)
    put(queue, PLAIN, 4)
    people = HumanWork(queue)
    done = handed_over(people, 2, review=True)
    people.assign(done, "ann", by="boss")
    people.submit(done, "ann")
    handed_over(people, 1)
    return queue


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("queues", [("work",), (), ("work", "other")], ids=["one queue", "any queue", "two queues"])
def test_the_default_config_changes_nothing_and_succeeds(
    filled: SqlQueue, in_memory: Deployment, verb: str, queues: tuple[str, ...]
) -> None:
    before = everything(filled)
    shown = Launchpad(in_memory.resource, in_memory.instance, *queues)(verb)
    assert everything(filled) == before
    assert shown.value["changed"] is False
    assert shown.observed is None
    if verb == "show":
        assert shown.value["queue"] == (queues[0] if len(queues) == 1 else None)
        assert shown.metadata["dead_letters"].count("failure of") == 3
        assert "no job was named, and the latest dead letters are listed" in shown.said
    elif len(queues) == 1:
        assert shown.said.startswith("queue work ") or shown.said.startswith("queue work: ")
        assert "Nothing was changed" in shown.said
    else:
        assert shown.said.startswith("no queue was named; name one of those that are listed")
        assert {"work", "other"} <= set(shown.metadata["queues"].replace("|", " ").split())


@pytest.mark.parametrize(
    ("verb", "could"),
    [("redrive", 3), ("delete", 3), ("hold", 4), ("reschedule", 4), ("release", 3), ("cancel", 8), ("reprioritise", 8)],
)
def test_the_jobs_that_could_be_selected_are_listed(
    filled: SqlQueue, in_memory: Deployment, verb: str, could: int
) -> None:
    on_work = Launchpad(in_memory.resource, in_memory.instance, PLAIN)
    shown = on_work(verb)
    assert shown.metadata["jobs_to_select_from"] == could
    assert f"and {could} jobs could be; select them by ids, by conditions or by all." in shown.said
    assert shown.metadata["jobs"].count("not selected") == could
    assert f"and at least {could - 1} jobs could be" in on_work(verb, limit=could - 1).said
    if verb == "reschedule":
        assert "give one of until and seconds" in on_work.refused(verb, until="2030-01-01T00:00:00Z", seconds=1.0)


@pytest.mark.parametrize("verb", ["redrive", "cancel", "hold", "release", "delete"])
def test_a_real_run_needs_a_selection(filled: SqlQueue, in_memory: Deployment, verb: str) -> None:
    before = everything(filled)
    said = Launchpad(in_memory.resource, in_memory.instance, PLAIN).refused(verb, dry_run=False)
    assert "the selection names no jobs: give ids, a condition" in said
    assert everything(filled) == before


def test_a_real_run_needs_all_that_a_listing_does_not(filled: SqlQueue, in_memory: Deployment) -> None:
    before = everything(filled)
    on_work = Launchpad(in_memory.resource, in_memory.instance, PLAIN)
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("rebucket", {}, "buckets is not given; give the new number of buckets"),
        ("reprioritise", {"all": True}, "priority is None"),
        ("reschedule", {"all": True}, "give one of until and seconds"),
        ("approve", {}, "by is None"),
        ("reject", {}, "the reason is None"),
        ("assign", {}, "to is None"),
        ("assign", {"to": "ann", "by": "boss"}, "ids is empty: name the jobs"),
    ]
    for verb, config, message in wrong:
        assert message in on_work.refused(verb, **config, dry_run=False)
    assert "queue is empty; name the queue" in Launchpad(in_memory.resource, in_memory.instance).refused(
        "pause", dry_run=False
    )
    assert everything(filled) == before


def test_a_queue_without_dead_letters_says_so(queue: SqlQueue, in_memory: Deployment) -> None:
    on_work = Launchpad(in_memory.resource, in_memory.instance, PLAIN)
    assert on_work("redrive").said.startswith("queue work: no jobs were selected to be put back, and there are none.")
    assert on_work("show").said == (
        "queue work: no job was named, and there are no dead letters; give the id of a job to show it"
    )


def test_the_latest_dead_letters_come_first_and_say_nothing_sensitive(queue: SqlQueue, launchpad: Launchpad) -> None:
    for text in ("first", "second"):
        queue.enqueue(PLAIN, NewJob(Work(n=1, note=text)))
        kill(queue)
    queue.create_queue(OTHER)
    listed = launchpad("show").metadata["dead_letters"]
    letters = [str(letter.id) for letter in queue.dead_letters("work")]
    assert [line.split("|")[1].strip() for line in listed.splitlines()[2:4]] == letters
    assert "second" not in listed, "payloads are left out"
