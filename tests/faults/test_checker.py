"""The checker on made-up runs: it says what is wrong, and only that."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.faults.checker import Audited, Tables, check

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
def test_a_bad_run_is_told(wrong: str) -> None:
    more, left = RUNS[wrong]
    assert any(wrong in found for found in check([GOOD_HISTORY, more], left, drained=False))


def test_what_was_not_finished_is_told_when_it_should_have_been() -> None:
    assert check([GOOD_HISTORY], Tables({"b": 0}, [("a", 2)], GOOD_AUDIT)) == ["1 jobs were not finished: b"]
