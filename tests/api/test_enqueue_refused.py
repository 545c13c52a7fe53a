"""What the SQL functions enqueue and enqueue_many refuse, as Python's verbs do."""

from typing import Any

import psycopg
import pytest

from dagster_sqlqueue import NewJob, SqlQueue
from dagster_sqlqueue.errors import InvalidInput
from tests.api.conftest import OWN, SPEC, Caller
from tests.support import Work, value

BAD: list[tuple[str, dict[str, Any], str]] = [
    ("priority => 10", {"priority": 10}, "it must be 0 to 9, higher runs first"),
    ("priority => -1", {"priority": -1}, "it must be 0 to 9, higher runs first"),
    ("priority => 70000", {"priority": 70_000}, "it must be 0 to 9, higher runs first"),
    ("max_attempts => 0", {"max_attempts": 0}, "it must be 1 to 1,000,000"),
    ("max_attempts => 1000001", {"max_attempts": 1_000_001}, "it must be 1 to 1,000,000"),
    ("timeout_seconds => 0", {"timeout_seconds": 0}, "it must be positive, at most a hundred years"),
    ("timeout_seconds => 'NaN'", {"timeout_seconds": float("nan")}, "it must be positive, at most a hundred years"),
    ("timeout_seconds => 1e10", {"timeout_seconds": 1e10}, "it must be positive, at most a hundred years"),
    ("ordering_key => ''", {"ordering_key": ""}, "ordering_key must be a text of 1 to 1,000 characters"),
    ("unique_key => repeat('x', 1001)", {"unique_key": "x" * 1001}, "unique_key must be a text of 1 to 1,000"),
    ("unique_key => repeat('🙂', 700)", {"unique_key": "🙂" * 700}, "has 2,800 bytes, the limit is 2,500"),
    ("region => ''", {"region": ""}, "region must be a text of 1 to 1,000 characters"),
    ("region => 'moon'", {"region": "moon"}, "which has no bucket in queue 'work'"),
    ("tags => ARRAY['']", {"tags": [""]}, "tags must be texts of 1 to 1,000 characters"),
    ("tags => array_fill(text 't', ARRAY[101])", {"tags": ["t"] * 101}, "has 101 words; a job may have 100"),
]
"""What is refused: as SQL, as Python's, and what both say of it."""


@pytest.mark.parametrize(("argument", "same", "said"), BAD, ids=[bad[0] for bad in BAD])
def test_bad_input_is_refused_as_in_python(
    line: SqlQueue, sqlc: Caller, argument: str, same: dict[str, Any], said: str
) -> None:
    message = sqlc.refused("SQ003", f"SELECT {{v1}}.enqueue('work', '{{{{}}}}', {argument})")
    with pytest.raises(InvalidInput) as caught:
        line.enqueue_many(SPEC, [NewJob(Work(n=1), **same)])
    spoken = said.replace("2,800", "2800") if "2,800" in said else said
    assert spoken in message.replace("2,800", "2800")
    assert said.split(" in queue")[0] in str(caught.value)
    assert line.depth("work").live == 0


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("NULL", "the payload is NULL"),
        ("'4'", "the payload is a JSON number; give an object, or an array"),
        ("'\"{{}}\"'", "the payload is a JSON string; give an object, or an array"),
        ("jsonb_build_object('x', repeat('x', 1000000))", "the limit is 1,000,000; store the data elsewhere"),
        ("jsonb_build_object('x', 10::numeric ^ 4300)", "a number of more than 4,300 digits; send it as a text"),
        (
            "jsonb_build_object('x', ARRAY[1, 10::numeric ^ 400 + 0.5])",
            "a number beyond the range of a double; send it",
        ),
        ("'{{}}', run_at => 'infinity'", "in UTC it must lie within the years 1 to 9999"),
        ("'{{}}', run_at => '-infinity'", "in UTC it must lie within the years 1 to 9999"),
        ("'{{}}', run_at => '0001-01-01 00:00 BC'", "in UTC it must lie within the years 1 to 9999"),
        ("'{{}}', run_at => '10000-01-01 00:00+00'", "in UTC it must lie within the years 1 to 9999"),
        ("'{{}}', priority => NULL", "priority is NULL; it must be 0 to 9"),
        ("'{{}}', tags => ARRAY[NULL]", "tags must be texts of 1 to 1,000 characters, and holds NULL"),
        (
            "'{{}}', backoff => '{{1}}'",
            "it must be {{seconds, factor, max_seconds, jitter}}".replace("{{", "{").replace("}}", "}"),
        ),
        ("'{{}}', backoff => '{{1,0.5,1,0}}'", "factor at least 1"),
        ("'{{}}', backoff => '{{1,1,NULL,0}}'", "max_seconds at most a hundred years"),
        ("'{{}}', on_duplicate => 'merge'", "on_duplicate is 'merge'; it must be 'ignore' or 'replace'"),
        ("'{{}}', on_duplicate => NULL", "on_duplicate is NULL"),
    ],
)
def test_what_only_sql_can_say_is_refused(line: SqlQueue, sqlc: Caller, argument: str, said: str) -> None:
    assert said in sqlc.refused("SQ003", f"SELECT {{v1}}.enqueue('work', {argument})")
    assert line.depth("work").live == 0


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_a_number_that_json_lacks_gets_nowhere_near_a_payload(line: SqlQueue, sqlc: Caller, word: str) -> None:
    """The database's JSON has no such word; of a number of the database's own it makes a text, and never null."""
    sqlc.refused("22P02", f"SELECT {{v1}}.enqueue('work', '{{{{\"n\": {word}}}}}')")
    assert line.depth("work").live == 0
    sqlc.value(f"SELECT {{v1}}.enqueue('work', jsonb_build_object('n', 1, 'x', float8 '{word}'))")
    assert value(line, "SELECT payload -> 'x' FROM {s}.job") == word


def test_a_large_whole_number_is_one(sqlc: Caller) -> None:
    assert sqlc.value("SELECT {v1}.enqueue('work', '{{\"n\": 1, \"x\": 1e400}}')")


def test_long_digits_in_a_text_are_no_number(sqlc: Caller) -> None:
    assert sqlc.value("SELECT {v1}.enqueue('work', jsonb_build_object('n', 1, 'x', repeat('9', 5000)))")
    assert sqlc.value("SELECT {v1}.enqueue('work', '[1, 2]')")
    assert sqlc.value("SELECT {v1}.enqueue('work', '{{}}', run_at => '9999-12-31 23:59:59.999999+00')")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("NULL", "payloads is NULL"),
        ("ARRAY[jsonb '{{}}', '3']", "row 1: the payload is a JSON number"),
        ("ARRAY[jsonb '{{}}', '{{}}'], priorities => '{{1}}'", "priorities has 1 elements and payloads 2"),
        ("ARRAY[jsonb '{{}}', '{{}}'], priorities => '{{1,10}}'", "row 1: priority is 10"),
        ("ARRAY[jsonb '{{}}', '{{}}'], priorities => '{{1,NULL}}'", "row 1: priority is NULL"),
        (f"ARRAY[jsonb '{{{{}}}}', '{{{{}}}}'], ids => '{{{{{OWN},{OWN}}}}}'", "ids holds the same id twice"),
        (f"ARRAY[jsonb '{{{{}}}}', '{{{{}}}}'], ids => '{{{{{OWN},NULL}}}}'", "ids holds NULL"),
        (
            f"ARRAY[jsonb '{{{{}}}}'], ids => ARRAY[ARRAY[uuid '{OWN}']]",
            "ids has more than one dimension; give a plain array",
        ),
        (
            "ARRAY[jsonb '{{}}', '{{}}'], unique_keys => '{{a,a}}', on_duplicate => 'replace'",
            "unique_keys holds the same key twice",
        ),
    ],
)
def test_one_bad_row_and_nothing_is_there(line: SqlQueue, sqlc: Caller, arguments: str, said: str) -> None:
    assert said in sqlc.refused("SQ003", f"SELECT {{v1}}.enqueue_many('work', {arguments})")
    assert line.depth("work").live == 0


def test_an_unknown_queue_is_reported_with_those_that_there_are(sqlc: Caller) -> None:
    for call in (
        "enqueue('nope', '{{}}')",
        "enqueue('nope', '{{}}', unique_key => 'u', on_duplicate => 'replace')",
        "enqueue('nope', '{{}}', region => 'local')",
        "enqueue(NULL, '{{}}')",
        "enqueue_many('nope', ARRAY[jsonb '{{}}'])",
    ):
        assert "(there are: work)" in sqlc.refused("SQ002", f"SELECT {{v1}}.{call}")


def test_no_text_with_a_nul_gets_as_far_as_a_function(sqlc: Caller) -> None:
    with pytest.raises(psycopg.DataError):
        sqlc.rows("SELECT {v1}.enqueue('work', '{{\"x\": \"\\u0000\"}}')")
