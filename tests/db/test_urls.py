"""What a URL says of a pooler: read here, and kept from the driver."""

import pytest

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.urls import libpq

URL = "postgresql://ann:secret@nowhere:6432/jobs"


@pytest.mark.parametrize(
    ("url", "given", "pooler", "shared"),
    [
        (URL, None, None, False),
        (URL, "transaction", Pooler.TRANSACTION, True),
        (f"{URL}?pooler=transaction", None, Pooler.TRANSACTION, True),
        (f"{URL}?pooler=session&sslmode=require", None, Pooler.SESSION, False),
        (f"{URL}?pooler=session", Pooler.TRANSACTION, Pooler.TRANSACTION, True),
    ],
)
def test_it_is_said_once_and_goes_no_further(url: str, given: str | None, pooler: Pooler | None, shared: bool) -> None:
    database = Database(url, pooler=given)
    assert (database.pooler, database.shared) == (pooler, shared)
    assert "pooler" not in database.engine.url.query
    for again in (Database(database.url), database.beside()):
        assert (again.pooler, again.shared, again.engine.url) == (pooler, shared, database.engine.url)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("pooler=statement", "pooler is 'statement'; it must be 'transaction'"),
        ("pooler=session&pooler=transaction", "more than once"),
        ("pooler=transaction&options=-csearch_path%3Dx", "set them for the role"),
    ],
)
def test_what_cannot_be_is_refused(query: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as caught:
        Database(f"{URL}?{query}")
    assert "secret" not in str(caught.value)


def test_spark_needs_sessions_of_its_own() -> None:
    assert "pooler" not in libpq(f"{URL}?pooler=session")
    with pytest.raises(InvalidInput, match="a URL that goes to the database itself") as caught:
        libpq(f"{URL}?pooler=transaction")
    assert "secret" not in str(caught.value)
