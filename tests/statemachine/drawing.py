"""What the state machine draws: settings, jobs, outcomes; and what an outcome is for the lifecycle."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import get_args

from hypothesis import strategies as st

from dagster_sqlqueue import Backoff, QueueSpec
from dagster_sqlqueue.model.job import ClaimedJob, UniqueUntil
from dagster_sqlqueue.model.lifecycle import Event
from dagster_sqlqueue.model.outcome import Cancel, Done, Hold, Outcome, Reject, Retry, Snooze
from dagster_sqlqueue.model.queue import PoisonPolicy, RateLimit, Strategy
from tests.statemachine.jobs import Moment
from tests.support import Work

HOUR = 3600.0
MOMENTS = {datetime(2020, 1, 1, tzinfo=UTC): -10_000.0, datetime(2100, 1, 1, tzinfo=UTC): 100_000.0}
TURNING = [strategy for strategy in Strategy if strategy is not Strategy.TOKEN]
INDEX = st.integers(0, 7)
INDEXES = st.lists(INDEX, min_size=1, max_size=4)
OUTCOMES = st.lists(
    st.sampled_from(
        [
            *(Done(), Done()),
            *(Retry("now"), Retry("now"), Retry("now"), Retry("later", 2 * HOUR)),
            *(Snooze(0), Snooze(3 * HOUR), *map(Snooze, MOMENTS)),
            *(Hold("look at it"), Reject("no"), Cancel("not wanted")),
        ]
    ),
    min_size=1,
    max_size=4,
)
BUCKETS = st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True)


@dataclass(frozen=True)
class Wanted:
    """A job that a rule is to enqueue: `hours` from the start of the run; None for at once."""

    priority: int
    hours: int | None
    ordering_key: str | None
    unique_key: str | None
    unique_until: UniqueUntil
    max_attempts: int | None
    tags: tuple[str, ...]


JOBS = st.builds(
    Wanted,
    priority=st.sampled_from([0, 0, 5, 9]),
    hours=st.sampled_from([None, None, None, -2, -1, 4]),
    ordering_key=st.sampled_from([None, "a", "a", "b"]),
    unique_key=st.sampled_from([None, None, "u", "v"]),
    unique_until=st.sampled_from(get_args(UniqueUntil)),
    max_attempts=st.sampled_from([None, None, None, 1]),
    tags=st.sampled_from([(), ("red",)]),
)


def specs(kind: str) -> st.SearchStrategy[QueueSpec[Work]]:
    """Settings of a kind of queue: plain, ordered, per_key (a limit for each key) or limited; or plain of one strategy."""
    keyed, limited = kind in ("ordered", "per_key"), kind == "limited"
    strategies = [Strategy.ROUND_ROBIN, *(TURNING if keyed or limited else Strategy)]
    limits = st.sampled_from([(2, None), (None, 3), (1, 6), (3, 6)]) if limited else st.just((None, None))
    return st.builds(
        settings_of,
        strategy=st.just(Strategy(kind)) if kind in tuple(Strategy) else st.sampled_from(strategies),
        ordered=st.booleans() if limited else st.just(kind == "ordered"),
        per_key=st.integers(1, 2) if kind == "per_key" else st.none(),
        limits=limits,
        on_poison=st.sampled_from(PoisonPolicy),
        max_attempts=st.sampled_from([3, 2, 1]),
    )


def settings_of(
    strategy: Strategy,
    ordered: bool,
    per_key: int | None,
    limits: tuple[int | None, int | None],
    on_poison: PoisonPolicy,
    max_attempts: int,
) -> QueueSpec[Work]:
    """A queue; the limits are on what runs, and on starts in an hour."""
    return QueueSpec(
        "work",
        Work,
        strategy=strategy,
        ordered=ordered,
        max_running_per_key=per_key,
        max_running=limits[0],
        rate=limits[1] and RateLimit(limits[1], HOUR),
        on_poison=on_poison,
        lease_seconds=HOUR,
        max_attempts=max_attempts,
        backoff=Backoff(0, jitter=0),
    )


KINDS = ("plain", "ordered", "per_key", "limited")
ANY_SPECS = st.sampled_from(KINDS).flatmap(specs)


def event_of(job: ClaimedJob, outcome: Outcome, stops: bool) -> Event:
    """What an outcome is for the lifecycle."""
    match outcome:
        case Done():
            return Event.DONE
        case Snooze():
            return Event.SNOOZE
        case Hold():
            return Event.HOLD
        case Cancel():
            return Event.CANCEL
        case Retry() if job.attempt < job.max_attempts:
            return Event.RETRY
        case Retry() | Reject():
            return Event.REJECT_AND_STOP if stops and job.order_no is not None else Event.REJECT


def due(how: Outcome) -> Moment | float:
    """When a job that goes back is due: at a moment, or after so many hours."""
    assert isinstance(how, Retry | Snooze)
    when = how.until if isinstance(how, Snooze) else how.after or 0
    return (MOMENTS[when], 0) if isinstance(when, datetime) else when / HOUR
