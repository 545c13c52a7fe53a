"""The lifecycle, compared with its page, its diagram and the tables."""

import re
from pathlib import Path

import pytest

from dagster_sqlqueue.db import statements
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.job import ArchiveState
from dagster_sqlqueue.model.lifecycle import TRANSITIONS, Actor, Event, LiveState, State, after
from dagster_sqlqueue.schema import migrations

PAGE = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
STATES: tuple[State, ...] = (None, *LiveState, *ArchiveState)


def test_the_diagram_draws_every_change_of_state_and_no_other() -> None:
    (diagram,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    drawn = {
        (_state(before), event.strip(), _state(end))
        for before, end, events in re.findall(r"^ *(\S+) --> (\S+): *(.+)$", diagram, re.MULTILINE)
        for event in events.split(",")
    }
    assert drawn == {(row.before, str(row.event), row.after) for row in TRANSITIONS if row.before != row.after}


def test_the_page_lists_every_transition() -> None:
    rows = re.findall(
        r"^\| ([^|]+) \| `([^`|]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| ([^|]*) \| [^|]+ \|$", PAGE, re.MULTILINE
    )
    listed = [
        (_state(before), event, _state(end), actor, attempt, "fence" in marks, "new lease" in marks)
        for before, event, end, actor, attempt, marks in rows
    ]
    known = [
        (row.before, row.event, row.after, row.actor, row.attempt, row.fenced, row.new_lease) for row in TRANSITIONS
    ]
    assert listed == known


def test_the_statements_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`([a-z_]+)\.sql`", PAGE))
    assert named
    assert named <= set(statements.names())


def test_the_tables_know_the_same_states() -> None:
    text = "".join(migration.text for migration in migrations.available())
    live = r"CREATE DOMAIN sqlqueue\.job_state AS text\s[^;]*CHECK \(VALUE IN \((.*?)\)\)"
    ended = r"CREATE TABLE sqlqueue\.job_archive \([^;]*state +text\s[^,]*CHECK \(state IN \((.*?)\)\)"
    for checked, states in ((live, LiveState), (ended, ArchiveState)):
        (names,) = re.findall(checked, text)
        assert re.findall(r"'(\w+)'", names) == list(states), checked


def test_one_cause_has_one_effect() -> None:
    causes = [(row.before, row.event) for row in TRANSITIONS]
    assert len(causes) == len(set(causes))


def test_every_write_of_a_consumer_carries_the_fence_and_only_claims_make_leases() -> None:
    for row in TRANSITIONS:
        assert row.fenced == (row.actor is Actor.CONSUMER and row.event is not Event.PROMOTE), row
        assert not row.new_lease or row.actor is Actor.CLAIM, row


def test_only_a_redrive_a_deletion_or_trimming_leads_out_of_the_archive() -> None:
    leading = {row.event for row in TRANSITIONS if row.before in tuple(ArchiveState)}
    assert leading == {Event.REDRIVE, Event.DELETE, Event.TRIM}


def test_every_state_can_be_reached_and_left() -> None:
    reached: set[State] = {None}
    while more := {row.after for row in TRANSITIONS if row.before in reached} - reached:
        reached |= more
    assert reached == set(STATES)
    assert {row.before for row in TRANSITIONS} == set(STATES)


def test_what_cannot_happen_is_said_with_what_can() -> None:
    assert after(LiveState.QUEUED, Event.CLAIM) == next(row for row in TRANSITIONS if row.event is Event.CLAIM)
    with pytest.raises(InvalidInput, match="claim cannot happen to a job that is held; there can: cancel, release"):
        after(LiveState.HELD, Event.CLAIM)
    with pytest.raises(InvalidInput, match=r"that is not there; there can: enqueue$"):
        after(None, Event.DONE)


def _state(written: str) -> State:
    name = written.strip().strip("`*[]")
    return next((state for state in STATES if state == name), None)
