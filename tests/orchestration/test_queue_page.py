"""What a queue's page shows of it: eight numbers that plot, tables for people, and the way to bring dead letters back."""

import re
from collections.abc import Sequence
from typing import Annotated, Any
from urllib.parse import unquote

import dagster as dg
import pytest
import yaml
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from pydantic import BaseModel

from dagster_sqlqueue import Done, Job, QueueSpec, Reject, Sensitive, SqlQueue
from dagster_sqlqueue.orchestration import (
    QueueConsumer,
    build_sqlqueue_checks,
    build_sqlqueue_launchpad_jobs,
    queue_consumer,
)
from dagster_sqlqueue.orchestration.markdown import INLINE
from tests.orchestration.support import Deployment, changed, evaluations
from tests.support import Work, rows


class Secret(BaseModel):
    """Its handler quotes what it must not show."""

    card: Annotated[str, Sensitive()]


CARDS = QueueSpec("cards", Secret, bucket_count=2, max_attempts=1)


@queue_consumer(CARDS)
def charge(job: Job[Secret]) -> Done | Reject:
    return Reject(f"the bank refuses {job.payload.card} | <b>for good</b>")


def tick(
    deployment: Deployment,
    consumer: QueueConsumer[Any],
    jobs: Sequence[dg.JobDefinition] = (),
    cursor: str | None = None,
) -> Any:
    """One tick as the daemon has it evaluated: it knows the code location and what is in it."""
    defs = dg.Definitions(
        jobs=[consumer.job, *jobs], sensors=[consumer.sensor], resources={"sqlqueue": deployment.resource}
    )
    with dg.build_sensor_context(
        instance=deployment.instance,
        cursor=cursor,
        resources={"sqlqueue": deployment.resource},
        repository_def=defs.get_repository_def(),
    ) as context:
        context._code_location_origin = InProcessCodeLocationOrigin(
            LoadableTargetOrigin(python_file="shop.py"), location_name="the shop"
        )
        return consumer.sensor(context)


def shown(result: Any) -> dict[str, Any]:
    """What the tick reported of the queue, whether as an observation or as a materialisation; links by their job's name."""
    event = result.asset_events[0]
    return {name: getattr(one, "job_name", one.value) for name, one in event.metadata.items()}


def lines(summary: str) -> dict[str, str]:
    return dict(re.findall(r"^- \*\*(.*?)\*\*: (.*)$", summary, re.MULTILINE))


def test_dead_letters_are_listed_with_their_error_and_the_way_back(queue: SqlQueue, deployment: Deployment) -> None:
    queue.create_queue(CARDS)
    queue.enqueue_many(CARDS, [Secret(card="4000 1234"), Secret(card="4000 5678")])
    deployment.drain(charge)
    jobs = build_sqlqueue_launchpad_jobs(CARDS, name_prefix="cards", verbs=["show", "redrive"])
    result = tick(deployment, charge, jobs)
    page = shown(result)
    letters = queue.dead_letters("cards")
    for letter in letters:
        assert f" `{letter.id}`\n" in page["latest_dead_letters"]
    assert r"the bank refuses \*\*\* \| \<b\>for good\</b\>" in page["latest_dead_letters"]
    assert "4000" not in str(result.asset_events)
    assert page["redrive_job"] == "cards_redrive"
    assert page["show_job"] == "cards_show"
    assert page["worked_off_by"] == "drain_cards"
    assert page["started_by"] == "sensor [cards_sensor](/locations/the%20shop/sensors/cards_sensor)"
    # The link opens the launchpad with these letters filled in, and what it says brings them back.
    at = page["latest_dead_letters"].partition("[Redrive these](")[2].partition(")")[0]
    path, _, text = at.partition("?config=")
    assert path == "/locations/the%20shop/jobs/cards_redrive/playground/setup"
    config = yaml.safe_load(unquote(text))
    wanted = config["ops"]["cards_redrive_op"]["config"]
    assert wanted == {"queue": "cards", "ids": [str(letter.id) for letter in letters], "dry_run": True}
    assert deployment.execute(jobs[1], cards_redrive_op={**wanted, "dry_run": False}).success
    assert queue.depth("cards").ready == 2
    # The check that fails says the same.
    (check,) = (one for one in evaluations(result) if one.check_name == "dead_letters")
    assert check.metadata["latest_dead_letters"].value == page["latest_dead_letters"]


def test_the_page_lists_as_much_as_it_shows_at_once(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    """Dagster shows longer Markdown behind a link. The check, on whose page all Markdown is, lists ten."""
    queue.enqueue_many(deployment.spec, [Work(n=n, note="fail") for n in range(12)])
    deployment.drain(consumer)
    rows(queue, "UPDATE {s}.job_archive SET error = repeat('e', 200)")
    deployment.enqueue_many(32)
    # In buckets that no consumer has emptied: there, heads before the hint are found later.
    older = "UPDATE {s}.job SET bucket = 4 + (payload->>'n')::int, available_at = available_at - interval '5 days'"
    rows(queue, older)
    queue.rebucket("work", 36)
    result = tick(deployment, consumer, build_sqlqueue_launchpad_jobs("work", name_prefix="work", verbs=["redrive"]))
    page = shown(result)
    (check,) = (one for one in evaluations(result) if one.check_name == "dead_letters")
    every = str(check.metadata["latest_dead_letters"].value)
    assert every.count("attempt 3 of 3") == 10
    assert len(every) > INLINE >= len(page["latest_dead_letters"])
    listed = re.findall(r"`([0-9a-f-]{36})`", page["latest_dead_letters"])
    assert listed == [str(letter.id) for letter in queue.dead_letters("work")][: len(listed)] != []
    assert re.findall('"([0-9a-f-]{36})"', unquote(page["latest_dead_letters"])) == listed
    buckets = page["buckets"].splitlines()
    assert len(page["buckets"]) <= INLINE
    assert buckets[-1].startswith(f"| and {32 - (len(buckets) - 3)} more |")


def test_without_launchpad_jobs_the_way_back_is_the_shell(queue: SqlQueue, deployment: Deployment) -> None:
    queue.create_queue(CARDS)
    queue.enqueue(CARDS, Secret(card="4000 1234"))
    deployment.drain(charge)
    page = shown(deployment.tick(charge.sensor))
    assert page["latest_dead_letters"].endswith("Redrive them in a shell: `sqlqueue retry cards ID …`, or `--all`.")
    assert page.keys() & {"redrive_job", "show_job", "started_by"} == set()
    checks = dg.Definitions(asset_checks=[build_sqlqueue_checks(CARDS)], resources={"sqlqueue": deployment.resource})
    found = checks.resolve_implicit_global_asset_job_def().execute_in_process().get_asset_check_evaluations()
    (check,) = (one for one in found if one.check_name == "dead_letters")
    assert check.metadata["latest_dead_letters"].value == page["latest_dead_letters"]


@pytest.mark.parametrize("other", [False, True])
def test_jobs_of_other_queues_are_not_linked(
    deployment: Deployment, consumer: QueueConsumer[Work], other: bool
) -> None:
    deployment.enqueue(Work(n=1))
    family = ["events", "letters"] if other else ["events", "work"]
    page = shown(tick(deployment, consumer, build_sqlqueue_launchpad_jobs(*family, name_prefix="all")))
    assert page.get("redrive_job") == (None if other else "all_redrive")


def test_the_summary_has_depth_rates_waits_and_stale_writes(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    deployment.enqueue_many(4)
    first = shown(deployment.tick(consumer.sensor))["summary"]
    assert lines(first)["Jobs"] == "4 ready"
    assert lines(first)["In"] == "4 in the last minute, 0.1 a minute over the hour"
    assert lines(first)["Out"] == "0 in the last minute, 0.0 a minute over the hour"
    assert lines(first)["Stale writes refused today"] == "0"
    deployment.drain(consumer)
    queue.pause("work")
    after = shown(deployment.tick(consumer.sensor))
    assert (after["in_per_minute"], after["done_per_minute"]) == (4, 4)
    said = lines(after["summary"])
    assert said["Jobs"] == "none"
    assert said["Paused"].startswith("nothing is claimed")
    assert said["Ended within the hour"] == "4 succeeded"
    for measured in ("Waits until the start", "From start to end"):
        assert re.fullmatch(r"p50 \S+ m?s, p95 \S+ m?s, p99 \S+ m?s", said[measured])


def test_what_ends_is_plotted_until_nothing_does(
    queue: SqlQueue, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    """The rates of a queue that was emptied go back to 0 on its page, and then it is silent."""
    deployment.enqueue_many(3)
    deployment.drain(consumer)
    first = deployment.tick(consumer.sensor)
    assert shown(first)["done_per_minute"] == 3

    def later(cursor: str) -> str:
        return changed(cursor, observed_at="2026-01-01T00:00:00+00:00")

    ago = "{0} = {0} - interval '2 minutes'"
    rows(queue, f"UPDATE {{s}}.job_archive SET {ago.format('run_at')}, {ago.format('finished_at')}")
    second = deployment.tick(consumer.sensor, cursor=later(first.cursor))
    assert shown(second)["done_per_minute"] == 0
    assert deployment.tick(consumer.sensor, cursor=later(second.cursor)).asset_events == []
