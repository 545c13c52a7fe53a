"""Ids that a producer derives from what it sends."""

import re
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.ids import stable_id


def test_a_stable_id_is_a_uuid_of_version_7_and_always_the_same() -> None:
    moment = datetime(2013, 1, 1, 12, tzinfo=UTC)
    one = stable_id(moment, "UA 1545")
    assert one == stable_id(moment, "UA 1545") != stable_id(moment, "UA 1546")
    assert (one.version, one.variant) == (7, UUID(int=one.int).variant)
    assert one < stable_id(datetime(2013, 1, 2, tzinfo=UTC), "UA 1545")


def test_a_stable_id_is_of_the_moment_in_whatever_zone() -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC)
    assert stable_id(moment, "a") == stable_id(moment.astimezone(timezone(timedelta(hours=-5))), "a")


@pytest.mark.parametrize(
    ("moment", "text", "says"),
    [
        (
            datetime(2013, 1, 1),
            "a",
            "the moment of an id is datetime.datetime(2013, 1, 1, 0, 0); give a datetime with a",
        ),
        (date(2013, 1, 1), "a", "the moment of an id is datetime.date(2013, 1, 1)"),
        ("2013-01-01T00:00:00Z", "a", "the moment of an id is '2013-01-01T00:00:00Z'"),
        (datetime(1969, 12, 31, tzinfo=UTC), "a", "it must not lie before 1970"),
        (datetime(2013, 1, 1, tzinfo=UTC), 7, "the text of an id is 7; give a text"),
        (datetime(2013, 1, 1, tzinfo=UTC), b"a", "the text of an id is b'a'"),
    ],
)
def test_what_makes_no_stable_id(moment: Any, text: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(says)):
        stable_id(moment, text)
