"""The parts of a component's attributes that have parts themselves, and how attributes are described."""

from datetime import timedelta
from typing import Annotated, Any

import dagster as dg
from dagster.components.utils.translation import TranslationFnResolver

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.backoff import Backoff
from dagster_sqlqueue.orchestration.assets import QueueAssetData
from dagster_sqlqueue.orchestration.checks import CheckThresholds

_BACKOFF = Backoff()
_LIMITS = CheckThresholds()


def said(description: str, *examples: Any, as_type: Any = None) -> dg.Resolver:
    """What the schema says of an attribute: Dagster takes it from the resolver, and leaves out what pydantic knows."""
    made: dg.Resolver = dg.Resolver.default(
        description=description, examples=list(examples) or None, model_field_type=as_type
    )
    return made


class AssetResolver(TranslationFnResolver[QueueAssetData]):
    """What a component's attribute `asset` is made of, and what the schema says of it."""

    def __init__(self) -> None:
        super().__init__(lambda data: {"data": data, "queue": data.spec.name})
        self.description = (
            "What is to be different about the asset: key, key_prefix, group_name, owners, kinds, tags, metadata,"
            " description, deps. '{{ queue }}' is the queue's name, '{{ spec }}' the asset as it would be."
        )
        self.examples = [{"key_prefix": "payments", "owners": ["team:payments"]}]


class BackoffAttributes(dg.Model, dg.Resolvable):
    """The wait between a job's attempts: `seconds * factor ** (attempt - 1)`, at most `max_seconds`."""

    seconds: Annotated[float, said("After the first attempt.")] = _BACKOFF.seconds
    factor: Annotated[float, said("1 for a fixed wait.")] = _BACKOFF.factor
    max_seconds: Annotated[float, said("The upper bound.")] = _BACKOFF.max_seconds
    jitter: Annotated[float, said("The share of the wait that is drawn at random, 0 to 1.")] = _BACKOFF.jitter


class RateAttributes(dg.Model, dg.Resolvable):
    """At most `starts` jobs begin within any `seconds`."""

    starts: Annotated[int, said("Jobs that begin.", 100)]
    seconds: Annotated[float, said("Within so long.", 60)] = 1.0


class CheckAttributes(dg.Model, dg.Resolvable):
    """From where on the queue's checks fail."""

    oldest_ready_seconds: Annotated[float, said("A job that is due waits no longer than that.", 60)] = (
        _LIMITS.oldest_ready_seconds
    )
    dead_letters: Annotated[int, said("So many jobs may lie in the dead letter.", 10)] = _LIMITS.dead_letters
    refused_writes: Annotated[int, said("So many writes a day may come too late for their lease.", 5)] = (
        _LIMITS.refused_writes
    )
    stalled_seconds: Annotated[float, said("A bucket with work moves within that time.", 900)] = _LIMITS.stalled_seconds


class FreshnessAttributes(dg.Model, dg.Resolvable):
    """How old the last progress of the queue may be. Give `fail_seconds`, or `deadline_cron` and `lower_bound_seconds`."""

    fail_seconds: Annotated[float | None, said("Older is a failure; at least 60.", 3600)] = None
    warn_seconds: Annotated[float | None, said("Older is a warning; less than fail_seconds.", 1800)] = None
    deadline_cron: Annotated[
        str | None, said("There has to be progress before each of these moments.", "0 8 * * *")
    ] = None
    lower_bound_seconds: Annotated[float | None, said("And not longer before the moment than that.", 3600)] = None
    timezone: Annotated[str, said("Of the cron expression.", "Pacific/Auckland")] = "UTC"

    def policy(self) -> dg.FreshnessPolicy:
        """The policy that Dagster evaluates.

        Raises:
            InvalidInput: neither of the two forms was given, or parts of both.
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
