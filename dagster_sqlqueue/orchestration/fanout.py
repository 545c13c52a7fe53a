"""Fan-out through the queue: one job for each account and day, due just after midnight in the account's time zone."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from itertools import groupby
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import dagster as dg
from pydantic import BaseModel

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.ids import stable_id
from dagster_sqlqueue.model.job import NewJob
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.orchestration.assets import SqlQueueTranslator, build_sqlqueue_asset_spec, single_run_backfills
from dagster_sqlqueue.orchestration.given import check_function, check_lists
from dagster_sqlqueue.orchestration.resource import RESOURCE_KEY, SqlQueueResource, under_key

ZONE_FIRST = ZoneInfo("Pacific/Kiritimati")
"""The time zone where each day begins, and ends, first."""


class DailyAccount(BaseModel):
    """The payload of a fanned-out job: the account and the day."""

    account: str
    day: date
    zone: str


@dataclass(frozen=True, slots=True)
class Account:
    """An account and its time zone.

    Args:
        name: unique among the accounts.
        zone: an IANA time zone.

    Raises:
        InvalidInput: one of them is no text.
    """

    name: str
    zone: str

    def __post_init__(self) -> None:
        for what in ("name", "zone"):
            if not isinstance(value := getattr(self, what), str):
                raise InvalidInput(f"the {what} of an account is {value!r:.100}; give a text")


NOT_A_ZONE = (ZoneInfoNotFoundError, ValueError, OSError)
"""What `ZoneInfo` raises for a text that names no time zone, such as `Nowhere`, `../x` and `Europe`."""


def unknown_zone(account: Account) -> InvalidInput:
    """The error that names an account whose time zone is unknown."""
    return InvalidInput(
        f"account {account.name!r} has the time zone {account.zone!r}, which is unknown; give one of IANA's, such as"
        " Europe/Berlin"
    )


def each_account(accounts: Iterable[Account]) -> list[Account]:
    """List the accounts; one that is there several times in the same time zone is one.

    Raises:
        InvalidInput: something is no account, or one name is there with several time zones; the message names it.
    """
    if not isinstance(accounts, Iterable):
        raise InvalidInput(f"the accounts are {accounts!r:.100}; give a list of them")
    by_name: dict[str, Account] = {}
    for account in accounts:
        if not isinstance(account, Account):
            raise InvalidInput(f"there is {account!r:.100} among the accounts; give each as Account(name, zone)")
        known = by_name.setdefault(account.name, account)
        if known.zone != account.zone:
            raise InvalidInput(
                f"account {account.name!r} is there twice, in the time zones {known.zone!r} and {account.zone!r}, and has"
                " one job a day; leave one of them out, or give them different names"
            )
    return list(by_name.values())


def due_at(day: date, zone: str, at: time = time(0, 1)) -> datetime:
    """The moment at which a day's job is due: `at` on the next day, by the account's clock.

    A time that daylight saving skips is the moment the clocks were moved on; one that comes twice is the first.
    """
    return datetime.combine(day + timedelta(days=1), at, tzinfo=ZoneInfo(zone)).astimezone(UTC)


def daily_jobs(queue: str, day: date, accounts: Iterable[Account]) -> list[NewJob[DailyAccount]]:
    """Make one job for each account and the day. Its id is made of both, so that a second fan-out adds nothing, also for an
    account that has changed its time zone.

    Raises:
        InvalidInput: the time zone of an account is unknown; the message names the account.
    """
    jobs = []
    for account in accounts:
        try:
            run_at = due_at(day, account.zone)
        except NOT_A_ZONE:
            raise unknown_zone(account) from None
        jobs.append(
            NewJob(
                DailyAccount(account=account.name, day=day, zone=account.zone),
                run_at=run_at,
                unique_key=f"{account.name}/{day}",
                id=daily_job_id(queue, day, account),
            )
        )
    return jobs


def daily_job_id(queue: str, day: date, account: Account) -> UUID:
    """Make the id of the job for an account's day: the same whatever the account's time zone is."""
    return stable_id(datetime.combine(day, time(), tzinfo=UTC), f"{queue}/{account.name}/{day}")


def build_fanout_asset(
    spec: QueueSpec[DailyAccount],
    accounts: Callable[[], Iterable[Account]],
    partitions_def: dg.DailyPartitionsDefinition,
    *,
    group_name: str | None = None,
    deps: Sequence[Any] = (),
    translator: SqlQueueTranslator | None = None,
    resource_key: str = RESOURCE_KEY,
) -> dg.AssetsDefinition:
    """Build the queue as a daily-partitioned asset: materialising a day enqueues one job for each account.

    A range of days is one run. Running a day again adds nothing, also when its jobs have ended.

    Args:
        spec: the queue of the daily jobs.
        accounts: returns all accounts; called once a run. One that it lists several times, in the same time zone, gets one
            job.
        partitions_def: the days.
        group_name: the asset's group; None: the translator's.
        deps: the upstream assets.
        translator: makes the queue's asset, with its key.
        resource_key: of the `SqlQueueResource`.

    Raises:
        InvalidInput: the queue is none, `accounts` is no function, `deps` no list, or the partitions are no days.
    """
    check_function("accounts", accounts)
    check_lists(deps=deps)
    check_daily(partitions_def)
    made = build_sqlqueue_asset_spec(spec, group_name=group_name, translator=translator)
    with single_run_backfills():

        @dg.asset(
            key=made.key,
            partitions_def=partitions_def,
            backfill_policy=dg.BackfillPolicy.single_run(),
            group_name=made.group_name,
            kinds=made.kinds,
            owners=made.owners,
            tags={name: value for name, value in made.tags.items() if not name.startswith("dagster/kind/")},
            metadata=made.metadata,
            freshness_policy=made.freshness_policy,
            deps=[*made.deps, *deps],
            description=f"The job queue `{spec.name}`, one partition a day: one job for each account, due at 00:01 of the"
            " account's own time zone when the day has ended there.",
        )
        @under_key(resource_key)
        def fan_out(context: dg.AssetExecutionContext, sqlqueue: SqlQueueResource) -> dg.MaterializeResult[Any]:
            everyone = each_account(accounts())
            if not everyone:
                raise InvalidInput(f"there is no account to fan out to for the queue {spec.name!r}")
            total = 0
            for key in context.partition_keys:
                jobs = daily_jobs(spec.name, day_of(partitions_def, key), everyone)
                done = sqlqueue.queue.enqueue_many(spec, jobs)
                total += done.inserted
                context.add_asset_metadata(
                    {
                        "jobs_enqueued": done.inserted,
                        "jobs_there_already": done.duplicates,
                        "first_due": dg.MetadataValue.timestamp(min(job.run_at for job in jobs if job.run_at)),
                        "last_due": dg.MetadataValue.timestamp(max(job.run_at for job in jobs if job.run_at)),
                    },
                    partition_key=key,
                )
            context.log.info(
                "%s: %d jobs for %d days and %d accounts", spec.name, total, len(context.partition_keys), len(everyone)
            )
            return dg.MaterializeResult(metadata={"accounts": len(everyone)})

    return fan_out


def build_fanout_schedule(
    asset: dg.AssetsDefinition,
    *,
    name: str | None = None,
    cron_schedule: str = "1 * * * *",
    default_status: dg.DefaultScheduleStatus = dg.DefaultScheduleStatus.STOPPED,
) -> dg.ScheduleDefinition:
    """Build a schedule that fans out every day that has ended in some time zone and was not fanned out yet, as one run, or
    as one for each range of such days.

    It catches up by itself: the next tick's range includes days missed while nothing ran, or whose run failed. The jobs
    carry their own due times, so the tick only has to come before the first account's midnight; an hourly one is enough.

    Raises:
        InvalidInput: the asset is none, or has no daily partitions.
    """
    if not isinstance(asset, dg.AssetsDefinition):
        raise InvalidInput(f"build_fanout_schedule was given {asset!r:.100}; give what build_fanout_asset returns")
    key = asset.key
    partitions_def = asset.partitions_def
    if not isinstance(partitions_def, dg.DailyPartitionsDefinition):
        raise InvalidInput(f"asset {key.to_user_string()} has no daily partitions; the fan-out schedule needs them")
    schedule_name = name or f"{key.path[-1]}_fanout"
    target = dg.define_asset_job(
        f"{schedule_name}_job",
        dg.AssetSelection.assets(key),
        executor_def=dg.in_process_executor,
        description=f"Fans out days on the asset {key.to_user_string()}: one job for each account.",
    )

    @dg.schedule(
        name=schedule_name,
        target=target,
        cron_schedule=cron_schedule,
        execution_timezone="UTC",
        default_status=default_status,
        description="Fans out the days that have ended: one job for each account, due at 00:01 of its own time zone.",
    )
    def fanout(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | list[dg.RunRequest] | dg.SkipReason:
        ended = ended_days(partitions_def, context.scheduled_execution_time)
        done = context.instance.get_materialized_partitions(key)
        missing = [day for day in ended if day not in done]
        if not missing:
            return dg.SkipReason(f"all {len(ended)} days that have ended are fanned out")
        # One that takes longer does no harm to another: each job is enqueued once.
        if runs_in_progress(context.instance, target.name, context.scheduled_execution_time):
            return dg.SkipReason(f"a run is fanning out already; {len(missing)} days were missing")
        # Without the days between them: what has been trimmed of those since would be enqueued again. Of several requests
        # Dagster wants run keys, which distinguish those of one tick.
        ranges = [range_request(days[0], days[-1]) for days in _ranges(ended, set(missing))]
        if len(ranges) == 1:
            return ranges[0]
        return [one.with_replaced_attrs(run_key=str(at)) for at, one in enumerate(ranges)]

    return fanout


def _ranges(days: Iterable[str], wanted: Collection[str]) -> Iterator[list[str]]:
    """Group the wanted days into ranges without any other day between them."""
    for chosen, some in groupby(days, wanted.__contains__):
        if chosen:
            yield list(some)


def ended_days(partitions_def: dg.DailyPartitionsDefinition, now: datetime) -> list[str]:
    """List the days that have ended in at least one time zone."""
    today = now.astimezone(ZONE_FIRST).date()
    return [key for key in partitions_def.get_partition_keys() if day_of(partitions_def, key) < today]


def check_daily(partitions_def: object) -> None:
    """Check that partitions are days.

    Raises:
        InvalidInput: they are others, such as weeks.
    """
    if not isinstance(partitions_def, dg.DailyPartitionsDefinition):
        raise InvalidInput(
            f"partitions_def is a {type(partitions_def).__name__}, and each partition of this asset is a day: give a"
            " DailyPartitionsDefinition"
        )


def day_of(partitions_def: dg.DailyPartitionsDefinition, key: str) -> date:
    """Return the day of a partition, whose key is in the format of the definition."""
    return datetime.strptime(key, partitions_def.fmt).date()


def range_request(first: str, last: str, **tags: str) -> dg.RunRequest:
    """Request one run for a range of daily partitions."""
    return dg.RunRequest(
        tags={"dagster/asset_partition_range_start": first, "dagster/asset_partition_range_end": last, **tags}
    )


_LONGEST_RUN = timedelta(hours=6)
"""How long a run counts as in progress: without Dagster's run monitoring, one whose process died is so for ever."""
_IN_PROGRESS = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def runs_in_progress(instance: dg.DagsterInstance, job: str, now: datetime) -> int:
    """Count the runs of a job that have not ended, without those that are so old that nothing may work on them."""
    created_after = now - _LONGEST_RUN
    return instance.get_runs_count(dg.RunsFilter(job_name=job, statuses=_IN_PROGRESS, created_after=created_after))
