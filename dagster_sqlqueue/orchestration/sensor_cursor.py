"""The cursor of a queue's sensor: what it remembers from tick to tick."""

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorType, SensorInstigatorData

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.orchestration.run_rate import RunRate

CUT_OFF = 0.001
"""By how much a moment in the cursor may be too early."""

_ITS_OWN = ("observed_at", "early_at", "events_read_at", "checked_at", "measured_at")
"""The moments of ticks, by the clock of the code server."""
_MOMENTS = (*_ITS_OWN, "run_ended_at")


@dataclass(slots=True)
class Memory:
    """The contents of a sensor's cursor, from tick to tick.

    Attributes:
        status: the status of the tick, for users who read the cursor; not read back.
        counts: the counts ready, leased, scheduled and held, as last observed.
        leased: the most jobs that ticks have found leased at a time since then.
        observed_at: when they were observed.
        flowing: whether jobs were enqueued or ended within the minute before that.
        paused: whether the queue was paused then.
        clear: whether no job was due, leased, or waiting for the turn of its key then.
        early_at: when a report last came before its minute was over.
        run_ended_at: when the last run materialised the asset to which a tick has responded.
        events_read_at: when a tick last read the asset's materialisations.
        heads: the most urgent due job of each bucket, as its id, priority and due time, and for how many seconds it had been
            due when a tick first read it there.
        left: the buckets whose first due job the runs that had come had left by the last tick.
        checks: the answers of the checks.
        checked_at: when they were last reported.
        rate: how fast runs ended jobs, as last measured.
        measured_at: when that was.
    """

    status: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    leased: int = 0
    observed_at: float = 0.0
    flowing: bool = False
    paused: bool = False
    clear: bool = False
    early_at: float = 0.0
    run_ended_at: float = 0.0
    events_read_at: float = 0.0
    heads: dict[str, tuple[str, float]] = field(default_factory=dict)
    left: list[int] = field(default_factory=list)
    checks: dict[str, bool] = field(default_factory=dict)
    checked_at: float = 0.0
    rate: RunRate | None = None
    measured_at: float = 0.0

    @property
    def busy(self) -> bool:
        """Whether jobs were due or leased."""
        return self.counts.get("ready", 0) + self.counts.get("leased", 0) > 0

    @classmethod
    def of(cls, cursor: str | None) -> "Memory":
        """Parse a cursor; an empty memory, if it has another form or a user cleared it. A tick's moment that is yet to come
        is now: the clock was set back, and nothing would be reported until it had caught up.
        """
        try:
            kept = json.loads("".join((cursor or "").split("\n")[1:2]) or "{}")
            memory = cls(**{**kept, **{name: _seconds(kept[name]) for name in _MOMENTS if name in kept}})
            for name in _ITS_OWN:
                setattr(memory, name, min(getattr(memory, name), time.time()))
            memory.counts = {str(name): int(count) for name, count in memory.counts.items()}
            memory.heads = {bucket: _head(text) for bucket, text in kept.get("heads", {}).items()}
            memory.leased = int(memory.leased)
            memory.left = [int(bucket) for bucket in memory.left]
            memory.rate = _rate(kept.get("rate"))
        except (TypeError, ValueError, AttributeError, KeyError):
            return cls()
        return memory

    def cursor(self) -> str:
        """Write the cursor for the next tick, and for users. Dagster's list of ticks shows the beginning and the end of a
        cursor: it begins with the status, and ends with what the status says last, if that is not all. Between them is what
        is not as in an empty memory, moments as text, in UTC.
        """
        usual = Memory()
        written = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "status"}
        written = {name: value for name, value in written.items() if value != getattr(usual, name)}
        written |= {name: _moment(written[name]) for name in _MOMENTS if name in written}
        if self.rate is not None:
            written["rate"] = asdict(self.rate) | {"per_second": round(self.rate.per_second, 1)}
        if self.heads:
            written["heads"] = {bucket: f"{first} {since}" for bucket, (first, since) in self.heads.items()}
        _, more, last = self.status.rpartition("; ")
        return "\n".join([self.status, json.dumps(written), *([last] if more else [])])

    def stood(self, heads: Sequence[Head]) -> dict[int, float]:
        """For how many seconds, by the database's clock, the most urgent due job of each bucket has been the same; remembers
        the present ones.
        """
        before, self.heads = self.heads, {}
        stood: dict[int, float] = {}
        # Heads come in no order, and one for each priority.
        for head in sorted(heads, key=lambda head: (head.bucket, -head.priority, -head.due_seconds)):
            bucket = str(head.bucket)
            if head.due_seconds < 0 or bucket in self.heads:
                continue
            first = f"{head.id} {head.priority} {_text(head.available_at)}"
            known = before.get(bucket)
            since = known[1] if known is not None and known[0] == first else round(head.due_seconds, 3)
            self.heads[bucket] = (first, since)
            stood[head.bucket] = head.due_seconds - since
            if (known is None or known[0] != first) and head.bucket in self.left:
                self.left.remove(head.bucket)
        return stood

    def still_left(self, left: Collection[int]) -> set[int]:
        """Return those of the buckets whose first due job, the same, was left by runs at the last tick as well; remembers
        the present ones. Call it after `stood`.
        """
        still = set(left) & set(self.left)
        self.left = sorted(left)
        return still


def stood_by_cursors(instance: dg.DagsterInstance, heads: Sequence[Head]) -> dict[int, float]:
    """For how many seconds the first due job of each bucket has been the same, by the cursors of all sensors of an instance.

    A cursor contains the job's id, so the cursors of other queues' sensors do not count.
    """
    if instance.schedule_storage is None:
        return {}
    stood: dict[int, float] = {}
    for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
        data = state.instigator_data
        if isinstance(data, SensorInstigatorData) and data.cursor:
            for bucket, seconds in Memory.of(data.cursor).stood(heads).items():
                stood[bucket] = max(stood.get(bucket, 0.0), seconds)
    return stood


def _moment(seconds: float) -> str:
    return _text(datetime.fromtimestamp(seconds, UTC))


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(moment: str | None) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def _rate(kept: dict[str, Any] | None) -> RunRate | None:
    if not kept:
        return None
    rate = RunRate(int(kept["jobs"]), float(kept["seconds"]))
    return rate if rate.jobs > 0 and rate.seconds > 0 else None


def _head(text: str) -> tuple[str, float]:
    first, _, since = text.rpartition(" ")
    return first, float(since)
