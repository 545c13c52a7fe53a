"""The settings by which a sensor turns a backlog into runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.numbers import is_delay, is_seconds, is_whole
from dagster_sqlqueue.queue import MAX_BATCH
from dagster_sqlqueue.queue.claim_filter import ClaimFilter

_COUNT = (partial(is_whole, least=1), "a whole number from 1")
_TIME = (is_seconds, "a number of seconds above 0, at most a hundred years")
_PAUSE = (is_delay, "a number of seconds, 0 or more, at most a hundred years")
_RULES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "max_runs": _COUNT,
    "jobs_per_run": _COUNT,
    "batch_size": (partial(is_whole, least=1, most=MAX_BATCH), f"a whole number from 1 to {MAX_BATCH:,}"),
    "run_seconds": _TIME,
    "start_seconds": _TIME,
    "starting_seconds": _TIME,
    "budget_seconds": _TIME,
    "linger_seconds": _PAUSE,
    "hand_over_seconds": _PAUSE,
}


@dataclass(frozen=True, slots=True)
class SensorSettings:
    """Settings by which a sensor turns a backlog into runs.

    Args:
        max_runs: the most drain runs of the sensor at a time; of a standing consumer, the number of its standing runs.
        run_seconds: the sensor requests one run for a backlog that a run works off in that time, two for twice as much,
            and so on. It measures the rate of runs by the latest jobs that runs of the queue ended, live ones included.
            Where nothing was measured yet it counts 5,000 jobs for a run, and never more than 10,000.
        jobs_per_run: the jobs for one run instead; None: by the measured rate.
        start_seconds: how long a run may take from its process to its op before another run gets its buckets; None: the
            lease of the queue's jobs, at least 30 s.
        starting_seconds: how long a run may be starting, by Dagster's record of it, before another run gets its buckets;
            None: ten minutes, or `start_timeout_seconds` of Dagster's run monitoring, if that is on and longer. The time in
            Dagster's own run queue does not count. A run that starts later still works.
        budget_seconds, linger_seconds, hand_over_seconds: passed on to the runs, see `DrainConfig`; None: by the
            consumer's mode.
        batch_size: jobs for each claim; None: `Consumer` chooses by the handler's time.
        share: where live runs cover all buckets with work, and the backlog is worth more runs, or two ticks find that they
            have left the same due job, request further runs that share their buckets; else no bucket has two runs of the
            sensor at a time.
        region: request runs for the buckets of this region only.
        tags: request runs only for jobs that have all of these tags.

    Raises:
        InvalidInput: a value is out of range; the message names it.
    """

    max_runs: int = 4
    run_seconds: float = 30.0
    jobs_per_run: int | None = None
    start_seconds: float | None = None
    starting_seconds: float | None = None
    budget_seconds: float | None = None
    linger_seconds: float | None = None
    hand_over_seconds: float | None = None
    batch_size: int | None = None
    share: bool = True
    region: str | None = None
    tags: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, (fits, rule) in _RULES.items():
            value = getattr(self, name)
            if not (fits(value) or (value is None and self.__dataclass_fields__[name].default is None)):
                raise InvalidInput(f"{name} of SensorSettings is {value!r}; it must be {rule}")
        ClaimFilter(tags=self.tags)
