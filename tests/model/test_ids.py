"""Ids that a producer derives from what it sends."""

from datetime import UTC, datetime
from uuid import UUID

from dagster_sqlqueue.model.ids import stable_id


def test_a_stable_id_is_a_uuid_of_version_7_and_always_the_same() -> None:
    moment = datetime(2013, 1, 1, 12, tzinfo=UTC)
    one = stable_id(moment, "UA 1545")
    assert one == stable_id(moment, "UA 1545") != stable_id(moment, "UA 1546")
    assert (one.version, one.variant) == (7, UUID(int=one.int).variant)
    assert one < stable_id(datetime(2013, 1, 2, tzinfo=UTC), "UA 1545")
