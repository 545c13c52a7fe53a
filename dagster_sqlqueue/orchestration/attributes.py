"""The nested attributes of a component, and the descriptions of attributes in its schema."""

from datetime import timedelta
from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFnResolver

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.orchestration.assets import QueueAssetData
from dagster_sqlqueue.orchestration.checks import CheckThresholds
from dagster_sqlqueue.orchestration.sensor_settings import SensorSettings

_BACKOFF = Backoff()
_LIMITS = CheckThresholds()


def said(description: str, *examples: Any, as_type: Any = None) -> dg.Resolver:
    """Describe an attribute in the schema. Dagster takes descriptions from resolvers, and ignores those of pydantic."""
    made: dg.Resolver = dg.Resolver.default(
        description=description, examples=list(examples) or None, model_field_type=as_type
    )
    return made


class AssetResolver(TranslationFnResolver[QueueAssetData]):
    """Resolves and describes a component's attribute `asset`."""

    def __init__(self) -> None:
        super().__init__(lambda data: {"data": data, "queue": data.spec.name})
        self.description = (
            "Changes to the asset: key, key_prefix, group_name, owners, kinds, tags, metadata, description, deps."
            " '{{ queue }}' is the queue's name, '{{ spec }}' the unchanged asset."
        )
        self.examples = [{"key_prefix": "payments", "owners": ["team:payments"]}]


class BackoffAttributes(dg.Model, dg.Resolvable):
    """The wait between a job's attempts: `seconds * factor ** (attempt - 1)`, at most `max_seconds`."""

    seconds: Annotated[float, said("The wait after the first attempt.")] = _BACKOFF.seconds
    factor: Annotated[float, said("The growth from one wait to the next; 1 for a fixed wait.")] = _BACKOFF.factor
    max_seconds: Annotated[float, said("The longest wait.")] = _BACKOFF.max_seconds
    jitter: Annotated[float, said("The share of the wait that is drawn at random, 0 to 1.")] = _BACKOFF.jitter


class RateAttributes(dg.Model, dg.Resolvable):
    """At most `starts` jobs begin within any `seconds`."""

    starts: Annotated[int, said("The most jobs that begin within the interval.", 100)]
    seconds: Annotated[float, said("The length of the interval.", 60)] = 1.0


class CheckAttributes(dg.Model, dg.Resolvable):
    """The thresholds above which the queue's checks fail."""

    oldest_ready_seconds: Annotated[float, said("The longest that a due job may wait.", 60)] = (
        _LIMITS.oldest_ready_seconds
    )
    dead_letters: Annotated[int, said("The most jobs in the dead letter.", 10)] = _LIMITS.dead_letters
    stale_writes: Annotated[int, said("The most writes a day that are refused because the lease had passed on.", 5)] = (
        _LIMITS.stale_writes
    )
    stalled_seconds: Annotated[float, said("The longest that a bucket with work may stand still.", 900)] = (
        _LIMITS.stalled_seconds
    )


class FreshnessAttributes(dg.Model, dg.Resolvable):
    """How old the last materialisation may be: jobs ended, or nothing was due.

    Give `fail_seconds`, or `deadline_cron` and `lower_bound_seconds`.
    """

    fail_seconds: Annotated[float | None, said("Older is a failure; at least 60.", 3600)] = None
    warn_seconds: Annotated[float | None, said("Older is a warning; less than fail_seconds.", 1800)] = None
    deadline_cron: Annotated[
        str | None, said("A cron expression: there must be progress before each of its moments.", "0 8 * * *")
    ] = None
    lower_bound_seconds: Annotated[
        float | None, said("How long before the moment the progress may be at most.", 3600)
    ] = None
    timezone: Annotated[str, said("The time zone of the cron expression.", "Pacific/Auckland")] = "UTC"

    def policy(self) -> dg.FreshnessPolicy:
        """Build the policy that Dagster evaluates.

        Raises:
            InvalidInput: neither form was given whole, or parts of both were.
        """
        match self.fail_seconds, self.warn_seconds, self.deadline_cron, self.lower_bound_seconds:
            case float(fail), warn, None, None:
                return dg.FreshnessPolicy.time_window(
                    timedelta(seconds=fail), None if warn is None else timedelta(seconds=warn)
                )
            case None, None, str(cron), float(bound):
                return dg.FreshnessPolicy.cron(cron, timedelta(seconds=bound), timezone=self.timezone)
        raise InvalidInput(
            f"freshness ({self.model_dump(exclude_none=True)}) is not usable: give fail_seconds, and warn_seconds if you"
            " like; or deadline_cron and lower_bound_seconds"
        )


class SensorAttributes(dg.Model, dg.Resolvable):
    """The attributes of a queue's sensor, and of the runs that it requests."""

    max_runs: Annotated[int, said("The most drain runs of the queue at a time.")] = 4
    run_seconds: Annotated[
        float,
        said(
            "The sensor requests one run for a backlog that a run works off in that time, at the rate of the latest runs,"
            " two for twice as much, and so on."
        ),
    ] = 30.0
    jobs_per_run: Annotated[
        int | None, said("The jobs for one run, instead of run_seconds. Unset: by the measured rate.", 1000)
    ] = None
    share: Annotated[
        bool,
        said(
            "Whether further runs share the buckets of live ones, where these do not keep up; false: no bucket has two runs"
            " at a time.",
            False,
        ),
    ] = True
    region: Annotated[
        str | None, said("Request runs for the buckets of this region only. Unset: for all buckets.", "eu")
    ] = None
    job_tags: Annotated[
        list[str] | None,
        said("Process only jobs that have all of these tags: the sensor requests no run for others.", ["urgent"]),
    ] = None
    batch_size: Annotated[
        int | None, said("The jobs for each claim, 1 to 10,000. Unset: by the handler's measured time.", 100)
    ] = None
    budget_seconds: Annotated[
        float | None, said("For how long a run claims new jobs. Unset: 300; standing 1800.", 300)
    ] = None
    linger_seconds: Annotated[
        float | None,
        said(
            "How long a run waits for further jobs when none is due. Unset: batch 0, linger 60, standing 1800.",
            60,
        ),
    ] = None
    hand_over_seconds: Annotated[
        float | None,
        said("How long before the end of its time a run lets its successor start. Unset: 0; standing 30.", 30),
    ] = None
    start_seconds: Annotated[
        float | None,
        said(
            "How long a run may take from its process to its first claim before another run gets its buckets. Unset: the"
            " lease, at least 30.",
            60,
        ),
    ] = None
    starting_seconds: Annotated[
        float | None,
        said(
            "How long Dagster may take to start a run before another run gets its buckets; the time in Dagster's run queue"
            " does not count. Unset: 600, or start_timeout_seconds of Dagster's run monitoring, if that is longer.",
            900,
        ),
    ] = None
    minimum_interval_seconds: Annotated[int, said("The shortest time between two ticks of the sensor.")] = 1
    default_status: Annotated[
        dg.DefaultSensorStatus,
        said("Whether the sensor runs as soon as the code location is loaded: RUNNING or STOPPED.", "RUNNING"),
    ] = dg.DefaultSensorStatus.STOPPED

    def sensor_settings(self) -> SensorSettings:
        """Build the settings of the sensor.

        Raises:
            InvalidInput: a value is out of range; the message names it.
        """
        return SensorSettings(
            max_runs=self.max_runs,
            run_seconds=self.run_seconds,
            jobs_per_run=self.jobs_per_run,
            start_seconds=self.start_seconds,
            starting_seconds=self.starting_seconds,
            budget_seconds=self.budget_seconds,
            linger_seconds=self.linger_seconds,
            hand_over_seconds=self.hand_over_seconds,
            batch_size=self.batch_size,
            share=self.share,
            region=self.region,
            tags=self.job_tags or (),
        )
