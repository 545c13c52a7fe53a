"""Which buckets get a run, together with which, and which have to wait."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest

from dagster_sqlqueue.model.job import Head
from dagster_sqlqueue.orchestration.run_plan import Plan, drains, left_by_runs, standing
from dagster_sqlqueue.orchestration.slots import Asked
from dagster_sqlqueue.orchestration.tick_status import ranges


def heads(*due: tuple[int, int, float]) -> list[Head]:
    return [Head(bucket, priority, datetime.now(UTC), seconds, uuid4()) for bucket, priority, seconds in due]


def plan(
    seen: list[Head],
    *,
    buckets: Sequence[int] | None = None,
    covered: Mapping[int, Sequence[int]] | None = None,
    asked: Mapping[int, Asked] | None = None,
    runs: int,
    ready: int,
    jobs_per_run: int,
    share: bool = True,
) -> Plan:
    """The plan where, unless it is said, all buckets have work, no run is there, and none was asked for in vain."""
    return drains(
        seen,
        buckets=[head.bucket for head in seen] if buckets is None else buckets,
        covered=covered or {},
        asked=asked or {},
        runs=runs,
        ready=ready,
        jobs_per_run=jobs_per_run,
        share=share,
    )


def test_the_most_urgent_buckets_lead_their_runs() -> None:
    seen = heads((0, 0, 10), (1, 0, 50), (2, 9, 1), (3, 0, 5), (4, 0, -3))
    planned = plan(seen, runs=2, ready=1_000, jobs_per_run=10)
    assert planned.groups == {0: (2, 0, 4), 1: (1, 3)}


def test_buckets_without_work_are_dealt_out_too() -> None:
    """A run that lingers takes what comes into any of them."""
    seen = heads((3, 0, 10), (5, 0, 9), (6, 0, -9))
    planned = plan(seen, buckets=range(8), runs=4, ready=20, jobs_per_run=10)
    assert planned.groups == {0: (3, 0, 2, 6), 1: (5, 1, 4, 7)}
    assert plan([], buckets=range(8), runs=4, ready=0, jobs_per_run=10).groups == {}
    nothing_due = plan(seen[2:], buckets=range(8), runs=4, ready=0, jobs_per_run=10)
    assert nothing_due.groups == {}
    suspect = {7: Asked(7, 5, 0.0)}
    assert plan(
        seen[:1], buckets=range(8), covered={0: (0, 1)}, asked=suspect, runs=2, ready=1, jobs_per_run=9
    ).groups == {1: (3, 2, 4, 5, 6)}


def test_further_runs_share_the_buckets_of_live_ones_that_are_overrun() -> None:
    seen = heads(*((bucket, 0, 10 - bucket) for bucket in range(6)))
    everything: dict[str, Any] = {"buckets": range(6), "runs": 4, "jobs_per_run": 10}
    live = {0: (0, 1, 2, 3), 1: (4, 5)}
    assert plan(seen, covered=live, ready=20, **everything).groups == {}
    assert plan(seen, covered=live, ready=21, **everything).groups == {2: (1, 3)}
    assert plan(seen, covered=live, ready=99, **everything).groups == {2: (1, 3), 3: (5,)}
    assert plan(seen[:1], covered={0: (0, 1)}, ready=99, **everything).groups == {1: (0,)}
    assert plan(seen, covered=live, ready=99, **everything).shared
    assert plan(seen, covered=live, ready=99, **everything, share=False).groups == {}


@pytest.mark.parametrize(("ready", "runs"), [(0, 1), (9, 1), (10, 1), (11, 2), (1_000, 3)])
def test_as_many_runs_as_the_backlog_is_worth(ready: int, runs: int) -> None:
    seen = heads(*((bucket, 0, 1) for bucket in range(8)))
    planned = plan(seen, runs=3, ready=ready, jobs_per_run=10)
    assert len(planned.groups) == runs
    assert sorted(bucket for group in planned.groups.values() for bucket in group) == list(range(8))


def test_slots_and_buckets_of_live_runs_are_left_alone() -> None:
    seen = heads((0, 0, 1), (1, 0, 1), (2, 0, 1))
    assert plan(seen, covered={1: (0, 1)}, runs=2, ready=99, jobs_per_run=1).groups == {0: (2,)}
    assert (
        plan(
            seen,
            covered={0: (0,), 1: (1,)},
            runs=2,
            ready=99,
            jobs_per_run=1,
        ).groups
        == {}
    )


def test_one_run_in_vain_changes_nothing_and_two_set_the_bucket_apart() -> None:
    seen = heads((0, 0, 9), (1, 0, 8), (2, 0, 7))
    once = {0: Asked(0, 1, 0.0)}
    assert plan(seen, asked=once, runs=3, ready=1, jobs_per_run=10).groups == {0: (0, 1, 2)}
    waits = plan(
        seen,
        asked={0: Asked(0, 2, 10.0)},
        runs=3,
        ready=1,
        jobs_per_run=10,
    )
    assert waits.groups == {0: (1, 2)}
    assert waits.waiting == {0: 20.0}
    again = plan(
        seen,
        asked={0: Asked(0, 2, 31.0)},
        runs=3,
        ready=1,
        jobs_per_run=10,
    )
    assert again.groups == {0: (1, 2), 1: (0,)}


@pytest.mark.parametrize(("starts", "seconds"), [(2, 30), (3, 60), (6, 480), (8, 1_800), (1_000, 1_800)])
def test_suspects_are_asked_for_less_and_less_often(starts: int, seconds: float) -> None:
    seen = heads((0, 0, 9))
    early, late = ({0: Asked(0, starts, at)} for at in (seconds - 1, seconds + 1))
    assert plan(seen, asked=early, runs=1, ready=1, jobs_per_run=10).groups == {}
    assert plan(seen, asked=late, runs=1, ready=1, jobs_per_run=10).groups == {0: (0,)}


def test_suspects_block_nobody_and_are_not_forgotten() -> None:
    seen = heads((0, 9, 99), (1, 0, 1), (2, 9, 98))
    asked = {0: Asked(0, 3, 100.0), 2: Asked(2, 3, 100.0)}
    # One run of two at most goes to suspects, and with a single run the others come first ...
    assert plan(seen, asked=asked, runs=2, ready=99, jobs_per_run=1).groups == {0: (1,), 1: (2,)}
    assert plan(seen, asked=asked, runs=1, ready=99, jobs_per_run=1).groups == {0: (1,)}
    # ... until the suspect has waited for an hour.
    hour = {0: Asked(0, 3, 3_700.0)}
    assert plan(seen[:2], buckets=[0, 1], asked=hour, runs=1, ready=99, jobs_per_run=1).groups == {0: (0,)}


def test_suspects_are_asked_for_together_and_in_parts_in_turns() -> None:
    """Together they are soon back after a fault of the whole deployment; in parts a poisoned one is found."""
    seen = heads(*((bucket, 0, 10 - bucket) for bucket in range(4)))

    def planned(*starts: int) -> dict[int, tuple[int, ...]]:
        asked = {bucket: Asked(bucket, count, 9_999.0) for bucket, count in enumerate(starts) if count}
        everything: dict[str, Any] = {"buckets": range(4), "runs": 3, "ready": 99, "jobs_per_run": 100}
        return plan(seen, asked=asked, **everything).groups

    assert planned(2, 2, 2, 2) == {0: (0, 1, 2, 3)}
    assert planned(3, 3, 3, 3) == {0: (3,)}
    assert planned(3, 3, 3, 4) == {0: (0, 1, 2)}
    assert planned(4, 4, 4, 4) == {0: (2,)}
    assert planned(9, 3, 3, 0) == {0: (3,), 1: (2,)}
    assert planned(3, 2, 0, 2) == {0: (2,), 1: (1, 3)}


def test_standing_runs_share_all_buckets_with_or_without_work() -> None:
    assert standing(range(5), runs=2, covered={}, asked={}).groups == {0: (0, 2, 4), 1: (1, 3)}
    assert standing(range(5), runs=2, covered={0: (0, 2, 4)}, asked={}).groups == {1: (1, 3)}
    assert standing(range(1), runs=2, covered={}, asked={}).groups == {0: (0,)}


def test_standing_runs_that_die_are_started_less_and_less_often() -> None:
    planned = standing(range(4), runs=2, covered={}, asked={1: Asked(1, 4, 0.0), 3: Asked(3, 4, 0.0)})
    assert planned.groups == {0: (0, 2)}
    assert planned.waiting == {1: 120.0, 3: 120.0}


def test_live_runs_take_over_what_no_further_run_may_be_started_for() -> None:
    seen = heads((0, 0, 9), (1, 0, 8), (4, 0, 7), (6, 0, -9))
    everything: dict[str, Any] = {"buckets": range(8), "runs": 2, "ready": 9, "jobs_per_run": 10}
    live = {0: (0, 1), 1: (2, 3)}
    planned = plan(seen, covered=live, **everything)
    assert planned.groups == {}
    assert planned.widened == {1: (4, 5, 6, 7)}, "the least busy one"
    # Not for what waits for its turn, nor by a run that is there for suspects.
    assert plan(seen, covered=live, asked={4: Asked(4, 5, 0.0)}, **everything).widened == {}
    assert plan(seen, covered=live, asked={2: Asked(2, 5, 0.0)}, **everything).widened == {0: (4, 5, 6, 7)}
    # Where a run may be started, it is.
    assert plan(seen, covered={0: (0, 1)}, **everything).widened == {}
    # Nothing of them has work.
    assert plan(seen[:2], covered=live, **everything).widened == {}


def test_due_jobs_are_left_by_runs_that_have_all_come() -> None:
    seen = heads((0, 0, 9), (1, 0, 8), (2, 0, -7), (3, 0, 6), (4, 0, 5))

    def left(at_work: dict[int, float], *asked: int) -> set[int]:
        wanted = {bucket: Asked(bucket, 1, 5.0) for bucket in asked}
        covered = {0: (0, 1, 2), 1: (1, 3)}
        return left_by_runs(seen, covered=covered, at_work=at_work, asked=wanted, start_seconds=30.0)

    assert left({0: 3.0, 1: 3.0}) == {0, 1, 3}
    assert left({0: 3.0}) == {0}, "the other run has not started"
    assert left({0: 60.0, 1: 3.0}, 3) == {0}, "it has started, and claimed nothing so far"
    assert left({0: 60.0, 1: 60.0}, 3) == {0, 1, 3}, "it never will, it seems"
    assert left({}) == set()


def test_what_live_runs_leave_gets_all_runs_that_are_allowed() -> None:
    seen = heads(*((bucket, 0, 300 - bucket) for bucket in range(4)))
    covered = {0: (0, 1, 2), 1: (1, 3)}

    def planned(ready: int, **more: Any) -> Plan:
        usual = {"buckets": range(4), "covered": covered, "asked": {}, "runs": 4, "jobs_per_run": 10, "still": {0, 3}}
        return drains(seen, ready=ready, **{**usual, **more})

    assert planned(1).groups == {2: (0, 3, 1, 2)}
    assert planned(9).groups == {2: (0, 3, 1, 2), 3: (0, 3, 1, 2)}
    assert planned(9).shared
    # Not where no run may be added, none may share, or a bucket has none at all.
    assert planned(9, runs=2).groups == {}
    assert planned(9, share=False).groups == {}
    uncovered = planned(9, covered={0: (0, 3)})
    assert (uncovered.groups, uncovered.shared) == ({1: (1, 2)}, False)
    # A suspect waits here as well, and keeps no other bucket from its runs.
    suspect = {1: Asked(1, 5, 0.0), 3: Asked(3, 5, 0.0)}
    assert planned(9, asked=suspect, covered={0: (0, 2, 3)}).groups == dict.fromkeys((1, 2, 3), (0, 2))


def test_what_live_runs_leave_is_shared_by_those_without_due_jobs_where_none_may_be_added() -> None:
    seen = heads((0, 0, 9), (5, 0, -9))
    live = {0: (0, 1), 1: (2, 3), 2: (4, 5), 3: (6, 7)}
    suspect = {7: Asked(7, 3, 0.0)}
    usual: dict[str, Any] = {"buckets": range(8), "covered": live, "asked": suspect, "ready": 1, "jobs_per_run": 10}
    planned = drains(seen, runs=4, still={0}, **usual)
    assert (planned.groups, planned.widened, planned.shared) == ({}, {1: (0,), 2: (0,)}, True)
    assert drains(seen, runs=4, still={0}, share=False, **usual).widened == {}
    # A bucket that no run covers goes to one of them as well.
    both = drains(heads((0, 0, 9), (8, 0, 5)), runs=4, still={0}, **{**usual, "buckets": range(9)})
    assert both.widened == {1: (8, 0), 2: (0,)}
    # A suspect that no run may be started for changes nothing.
    beside: dict[str, Any] = {"asked": {7: Asked(7, 3, 0.0), 8: Asked(8, 3, 9_999.0)}, "buckets": range(9)}
    with_suspect = drains(heads((0, 0, 9), (8, 0, 5)), runs=4, still={0}, **{**usual, **beside})
    assert (with_suspect.groups, with_suspect.widened, with_suspect.shared) == ({}, {1: (0,), 2: (0,)}, True)


def test_standing_runs_take_over_buckets_that_are_new() -> None:
    planned = standing(range(8), runs=2, covered={0: (0, 2), 1: (1, 3)}, asked={})
    assert planned.groups == {}
    assert planned.widened == {0: (4, 6), 1: (5, 7)}
    planned = standing(range(8), runs=2, covered={0: (0, 2)}, asked={})
    assert planned.groups == {1: (1, 3, 5, 7)}
    assert planned.widened == {0: (4, 6)}
    # There were more of them: what they still have is theirs.
    planned = standing(range(4), runs=1, covered={1: (1, 3)}, asked={})
    assert planned.groups == {0: (0, 2)}


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([3], "3"), ([0, 1, 2], "0-2"), ([7, 0, 1, 3, 4], "0-1,3-4,7"), ([], "")],
)
def test_numbers_are_written_as_people_do(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text


def test_a_tag_is_no_longer_than_it_may_be() -> None:
    text = ranges(range(0, 1_024, 2))
    assert len(text) <= 201
    assert text.startswith("0,2,4,")
    assert text.endswith(",…")
