"""Which launchpad jobs there are, for which queues, and on which resource."""

import dagster as dg
import pytest

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.orchestration import SqlQueueResource, build_sqlqueue_launchpad_jobs
from dagster_sqlqueue.queue.selection import Selection
from tests.orchestration.launchpad_support import Launchpad
from tests.orchestration.support import Deployment
from tests.support import Work
from tests.support.decisions import PLAIN, put


def test_a_closed_choice_of_queues(queue: SqlQueue, in_memory: Deployment) -> None:
    queue.create_queue(QueueSpec("other", Work))
    (job,) = put(queue, PLAIN, 1)
    only = Launchpad(in_memory.resource, in_memory.instance, PLAIN)
    assert only("hold", all=True).value["queue"] == "work"
    with pytest.raises(dg.DagsterInvalidConfigError):
        only.run("hold", queue="other", all=True)
    assert only("show", id=str(job)).value["queue"] == "work"
    others = Launchpad(in_memory.resource, in_memory.instance, "other", "more")
    with pytest.raises(dg.DagsterInvalidConfigError):
        others.run("hold", queue="work", all=True)
    assert "queue is empty; name the queue" in others.refused("hold", all=True, dry_run=False)
    assert "the job is of queue 'work'; this shows jobs of other, more" in others.refused("show", id=str(job))
    tags = only.definitions.resolve_job_def("sqlqueue_hold").tags
    assert (tags["sqlqueue/launchpad"], tags["sqlqueue/queue"]) == ("hold", "work")
    assert tags["dagster/max_retries"] == "0", "a deployment that retries runs would decide again"


def test_which_jobs_there_are(url: str) -> None:
    jobs = build_sqlqueue_launchpad_jobs(name_prefix="ops", verbs=["redrive", "cancel"])
    assert [job.name for job in jobs] == ["ops_redrive", "ops_cancel"]
    both = [*build_sqlqueue_launchpad_jobs("work"), *build_sqlqueue_launchpad_jobs("other", name_prefix="other")]
    resources = {"sqlqueue": SqlQueueResource(url=url)}
    dg.Definitions.validate_loadable(dg.Definitions(jobs=both, resources=resources))
    assert len({job.name for job in both}) == 28
    assert {type(job.executor_def) for job in both} == {dg.ExecutorDefinition}
    assert {job.executor_def.name for job in both} == {"in_process"}
    for wrong, message in (
        ({"name_prefix": "a b"}, "name_prefix is 'a b'"),
        ({"verbs": ["drop"]}, "verbs holds 'drop'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            build_sqlqueue_launchpad_jobs(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="Work!"):
        build_sqlqueue_launchpad_jobs("Work!")


def test_a_resource_of_its_own(queue: SqlQueue, in_memory: Deployment) -> None:
    """The code location's resource may be one that could not do it."""
    put(queue, PLAIN, 1)
    (job,) = build_sqlqueue_launchpad_jobs("work", verbs=["cancel"], resource=in_memory.resource)
    elsewhere = SqlQueueResource(url="postgresql://me@127.0.0.1:1/none", connect_timeout_seconds=1)
    definitions = dg.Definitions(jobs=[job], resources={"sqlqueue": elsewhere})
    done = definitions.resolve_job_def("sqlqueue_cancel").execute_in_process(
        instance=in_memory.instance,
        run_config={"ops": {"sqlqueue_cancel_op": {"config": {"all": True, "dry_run": False}}}},
    )
    assert done.success
    assert queue.jobs("work", Selection(all=True), archived=True)[0].state == "cancelled"


def test_a_database_that_is_away(url: str, ephemeral: dg.DagsterInstance) -> None:
    away = SqlQueueResource(url="postgresql://me:s3cret@127.0.0.1:1/none", connect_timeout_seconds=1)
    said = Launchpad(away, ephemeral).refused("pause", queue="work")
    assert "127.0.0.1:1/none" in said
    assert "s3cret" not in said
    missing = SqlQueueResource(url=url, schema_name="nothing_here")
    assert "sqlqueue migrate" in Launchpad(missing, ephemeral).refused("pause", queue="work")


def test_the_assets_of_queues_may_have_other_keys(queue: SqlQueue, in_memory: Deployment) -> None:
    put(queue, PLAIN, 1)
    key = dg.AssetKey(["payments", "work"])
    (job,) = build_sqlqueue_launchpad_jobs(PLAIN, verbs=["hold"], asset_keys={"work": key})
    done = in_memory.execute(job, sqlqueue_hold_op={"all": True, "dry_run": False})
    (seen,) = done.filter_events(lambda event: event.event_type is dg.DagsterEventType.ASSET_OBSERVATION)
    assert seen.asset_key == key
