"""How many runs are requested in vain, and for which buckets, over hours of ticks: the plans are real, the runs are not."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from uuid import uuid4

import pytest

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.orchestration.run_plan import drains, suspect
from dagster_sqlqueue.orchestration.slots import Asked

TICK = 5
START = 7
LONGEST_WAIT = 1_800
HOUR = 3_600

HEADS = [Head(bucket, 0, datetime.now(UTC), 100.0, uuid4()) for bucket in range(256)]

BRIEF, LONG = 1, 120
"""For how many seconds runs that claim live on: no tick sees those of the first kind at work."""


@dataclass(frozen=True, slots=True)
class Requested:
    """A run: when it was requested, for which buckets, when it comes, and when it ends."""

    at: int
    buckets: tuple[int, ...]
    comes: int
    ends: int
    fails: bool


@dataclass(slots=True)
class Ticks:
    """A sensor of a queue all of whose buckets always have work."""

    buckets: int
    fails: Callable[[int, Sequence[int]], bool]
    works_for: int = BRIEF
    now: int = 0
    starts: dict[int, int] = field(default_factory=dict)
    asked_at: dict[int, int] = field(default_factory=dict)
    live: dict[int, Requested] = field(default_factory=dict)
    requested: list[Requested] = field(default_factory=list)

    @property
    def suspects(self) -> set[int]:
        return {bucket for bucket, asked in self._asked().items() if suspect(asked)}

    @property
    def failed(self) -> list[Requested]:
        return [run for run in self.requested if run.fails]

    def go_on(self, seconds: int) -> None:
        until = self.now + seconds
        while self.now < until:
            self._tick()
            self.now += TICK

    def _asked(self) -> dict[int, Asked]:
        return {bucket: Asked(bucket, count, self.now - self.asked_at[bucket]) for bucket, count in self.starts.items()}

    def _tick(self) -> None:
        for number, run in list(self.live.items()):
            if not run.fails and run.comes <= self.now:
                for bucket in run.buckets:
                    self.starts.pop(bucket, None)
            if run.ends <= self.now:
                del self.live[number]
        planned = drains(
            HEADS[: self.buckets],
            buckets=range(self.buckets),
            covered={number: run.buckets for number, run in self.live.items()},
            asked=self._asked(),
            runs=4,
            ready=1_000,
            jobs_per_run=5_000,
        )
        for number, buckets in planned.widened.items():
            self.live[number] = replace(self.live[number], buckets=(*self.live[number].buckets, *buckets))
            for bucket in buckets:
                self.starts.pop(bucket, None)
        for number, buckets in planned.groups.items():
            comes, fails = self.now + START, self.fails(self.now, buckets)
            run = Requested(self.now, buckets, comes, comes + (0 if fails else self.works_for), fails)
            self.live[number] = run
            self.requested.append(run)
            for bucket in buckets:
                self.starts[bucket] = self.starts.get(bucket, 0) + 1
                self.asked_at[bucket] = self.now


@pytest.mark.parametrize("buckets", [1, 2, 3, 16, 64, 256])
def test_a_handler_that_fails_every_run_gets_no_more_of_them_for_more_buckets(buckets: int) -> None:
    ticks = Ticks(buckets, lambda at, group: True)
    ticks.go_on(2 * HOUR)
    assert 8 <= len(ticks.requested) <= 12
    assert ticks.suspects == set(range(buckets))


@pytest.mark.parametrize("works_for", [BRIEF, LONG])
@pytest.mark.parametrize("mended", [20, 100, 300, HOUR, 2 * HOUR])
def test_all_buckets_recover_within_one_wait_once_the_handler_is_mended(mended: int, works_for: int) -> None:
    ticks = Ticks(64, lambda at, group: at < mended, works_for)
    ticks.go_on(mended)
    last = ticks.requested[-1].at
    wait = min(max(mended, 60), LONGEST_WAIT)
    # Where the first run is that of a few buckets, the others come in such parts, as slots are free.
    ticks.go_on(wait + 64 // 4 * (works_for + START + 4 * TICK))
    assert not ticks.suspects
    assert any(last < run.at <= last + wait + TICK for run in ticks.requested)


@pytest.mark.parametrize("works_for", [BRIEF, LONG])
@pytest.mark.parametrize("poisoned", [{0}, {1}, {63}, {0, 1}, {5, 33}])
def test_a_poisoned_bucket_is_found_and_tried_apart(poisoned: set[int], works_for: int) -> None:
    ticks = Ticks(64, lambda at, group: bool(poisoned & set(group)), works_for)
    ticks.go_on(HOUR)
    assert ticks.suspects == poisoned
    assert len(ticks.failed) <= 9 * len(poisoned)
    ticks.go_on(2 * HOUR)
    late = [run for run in ticks.requested if run.at >= HOUR]
    failed = [run.buckets for run in late if run.fails]
    assert {bucket for group in failed for bucket in group} == poisoned, (
        "each of them is still tried, and nothing with it"
    )
    assert len(failed) <= 6 * len(poisoned)
    # All others never wait.
    assert max(later.at - run.at for run, later in pairwise(late)) <= works_for + START + 2 * TICK


def test_a_new_fault_of_all_does_not_wait_as_long_as_a_bucket_that_is_poisoned_for_long() -> None:
    faulty = range(5 * HOUR, 5 * HOUR + 60)
    ticks = Ticks(64, lambda at, group: 7 in group or at in faulty)
    ticks.go_on(5 * HOUR + 60)
    assert ticks.suspects == set(range(64))
    ticks.go_on(300)
    assert ticks.suspects == {7}


def test_a_bucket_that_is_new_waits_with_the_others() -> None:
    """Each that comes costs the two runs that make it a suspect, and none of its own after them."""
    ticks = Ticks(8, lambda at, group: True)
    ticks.go_on(2 * HOUR)
    before = len(ticks.requested)
    ticks.buckets = 9
    ticks.go_on(2 * HOUR)
    assert len(ticks.requested) - before <= 2 + 2 * HOUR / LONGEST_WAIT
