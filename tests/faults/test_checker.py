"""The checker on made-up runs: it says what is wrong, and only that."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_sqlqueue.model.queue import RateLimit
from tests.faults.checker import Audited, Bounds, Tables, broken, check

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def claimed(lease_no: int, at: int, *, was_running_until: int | None = None) -> Audited:
    state = "queued" if was_running_until is None else "running"
    until = NOON + timedelta(seconds=was_running_until or 0)
    return Audited("a", "claim", lease_no, NOON + timedelta(seconds=at), state, until)


GOOD_HISTORY: list[dict[str, Any]] = [
    {"event": "enqueued", "ids": ["a", "b"]},
    {"event": "claimed", "jobs": [["a", 1]]},
    {"event": "claimed", "jobs": [["a", 2]]},
    {"event": "refused", "jobs": [["a", 1]]},
    {"event": "ended", "jobs": [["a", 2]]},
]
GOOD_AUDIT = [claimed(1, 0), claimed(2, 10, was_running_until=10)]


def test_a_good_run_passes() -> None:
    assert check([GOOD_HISTORY], Tables({"b": 0}, [("a", 2)], GOOD_AUDIT), drained=False) == []


RUNS: dict[str, tuple[list[dict[str, Any]], Tables]] = {
    "acknowledged are gone": ([], Tables({}, [("a", 2)])),
    "not in the archive": ([{"event": "ended", "jobs": [["b", 1]]}], Tables({"b": 1}, [("a", 2)])),
    "ended more than once": ([], Tables({"b": 0}, [("a", 2), ("a", 2)])),
    "finished and live": ([], Tables({"a": 2, "b": 0}, [("a", 2)])),
    "more than one ending accepted": ([{"event": "ended", "jobs": [["a", 2]]}], Tables({"b": 0}, [("a", 2)])),
    "but lease 3 was the current one": ([], Tables({"b": 0}, [("a", 3)])),
    "granted after it": ([], Tables({"b": 0}, [("a", 2)], [*GOOD_AUDIT, claimed(3, 20)])),
    "given to two claims": ([{"event": "claimed", "jobs": [["a", 2]]}], Tables({"b": 0}, [("a", 2)])),
    "before the end of another lease": (
        [],
        Tables({"b": 0}, [("a", 2)], [claimed(1, 0), claimed(2, 9, was_running_until=10)]),
    ),
    "got lease 2 after lease 0": ([], Tables({"b": 0}, [("a", 2)], [claimed(2, 10)])),
    "deleted without an archive row": (
        [],
        Tables({"b": 0}, [("a", 2)], [Audited("c", "end", 1, NOON, "running", NOON)]),
    ),
}


@pytest.mark.parametrize("wrong", list(RUNS))
def test_a_bad_run_is_found(wrong: str) -> None:
    more, left = RUNS[wrong]
    assert any(wrong in found for found in check([GOOD_HISTORY, more], left, drained=False))


def test_what_was_not_finished_is_found_when_it_should_have_been() -> None:
    assert check([GOOD_HISTORY], Tables({"b": 0}, [("a", 2)], GOOD_AUDIT)) == ["1 jobs were not finished: b"]


def event(job: str, kind: str, at: float, until: float = 0, *, key: str = "k", order_no: int | None = None) -> Audited:
    def moment(seconds: float) -> datetime:
        return NOON + timedelta(seconds=seconds)

    return Audited(job, kind, 1, moment(at), "running", moment(at), moment(until), key, order_no)


KEPT_BOUNDS: dict[str, tuple[Bounds, list[Audited]]] = {
    "one after the other": (
        Bounds(max_running=1),
        [event("a", "claim", 0, 10), event("a", "end", 5), event("b", "claim", 5, 10)],
    ),
    "after a lease that ran out": (
        Bounds(max_running=1),
        [event("a", "claim", 0, 10), event("b", "claim", 10, 20), event("a", "back", 15)],
    ),
    "one given back and taken again": (
        Bounds(max_running=1),
        [event("a", "claim", 0, 10), event("a", "back", 4), event("b", "claim", 4, 8), event("a", "claim", 8, 9)],
    ),
    "other keys": (Bounds(max_running_per_key=1), [event("a", "claim", 0, 10), event("b", "claim", 1, 10, key="l")]),
    "the next interval": (
        Bounds(rate=RateLimit(2, 1)),
        [event("a", "claim", 0.5), event("b", "claim", 0.9), event("c", "claim", 1.5)],
    ),
    "a retry in its place": (
        Bounds(ordered=True),
        [
            event("a", "claim", 0, 9, order_no=1),
            event("a", "back", 1, 2, order_no=1),
            event("a", "claim", 2, 9, order_no=1),
            event("a", "end", 3, order_no=1),
            event("b", "claim", 3, 9, order_no=2),
        ],
    ),
}


@pytest.mark.parametrize("run", list(KEPT_BOUNDS))
def test_bounds_that_were_kept_pass(run: str) -> None:
    bounds, audit = KEPT_BOUNDS[run]
    assert broken(audit, bounds) == []


BROKEN_BOUNDS: dict[str, tuple[Bounds, list[Audited]]] = {
    "2 leases lived": (Bounds(max_running=1), [event("a", "claim", 0, 10), event("b", "claim", 9, 20)]),
    "queue allows 1": (
        Bounds(max_running=1),
        [event("a", "claim", 0, 10), event("a", "kept", 9, 20), event("b", "claim", 15, 20)],
    ),
    "one moment": (
        Bounds(max_running=1),
        [event("a", "claim", 0, 10), event("b", "claim", 11, 20), event("a", "kept", 12, 30)],
    ),
    "2 leases of key k": (Bounds(ordered=True), [event("a", "claim", 0, 10), event("b", "claim", 9, 20)]),
    "3 jobs began within": (
        Bounds(rate=RateLimit(2, 1)),
        [event("a", "claim", 0.5), event("b", "claim", 0.9), event("c", "claim", 1.49)],
    ),
    "job a of key k was overtaken": (
        Bounds(ordered=True),
        [
            event("b", "claim", 0, 1, order_no=2),
            event("b", "end", 1, order_no=2),
            event("a", "claim", 2, 3, order_no=1),
        ],
    ),
}


@pytest.mark.parametrize("wrong", list(BROKEN_BOUNDS))
def test_bounds_that_were_broken_are_found(wrong: str) -> None:
    bounds, audit = BROKEN_BOUNDS[wrong]
    assert any(wrong in found for found in broken(audit, bounds))
