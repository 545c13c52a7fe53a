"""What a database URL says: to the driver, and of a pooler."""

import pytest
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.db.urls import driver_options, parse_url, pooler_of
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
    taken, _ = pooler_of(parse_url(database.url))
    assert "pooler" not in driver_options(taken)
    for again in (Database(database.url), database.beside()):
        assert (again.pooler, again.shared, again.url) == (pooler, shared, database.url)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("pooler=statement", "pooler is 'statement'; it must be 'transaction'"),
        ("pooler=session&pooler=transaction", "more than once"),
        ("pooler=transaction&options=-csearch_path%3Dx", "set them for the role"),
        ("sslmod=require", "has the option 'sslmod', which the driver does not know"),
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


WRITTEN = [
    ("postgresql://ann:secret@nowhere:6432/jobs", "user=ann password=secret host=nowhere port=6432 dbname=jobs"),
    ("postgres://nowhere", "host=nowhere"),
    ("postgresql+psycopg:///jobs", "dbname=jobs"),
    ("postgresql://", ""),
    ("postgresql://ann@/jobs?host=/run/my:sockets", "user=ann dbname=jobs host=/run/my:sockets"),
    ("postgresql://[::1]:5433/jobs", "host=::1 port=5433 dbname=jobs"),
    ("postgresql://an%40n:a%2Fb%3A%40+c@h/jobs", "user=an@n password=a/b:@+c host=h dbname=jobs"),
    ("postgresql:///jobs?host=a:1&host=b:2", "dbname=jobs host=a,b port=1,2"),
    ("postgresql:///jobs?host=a:1&host=b", "dbname=jobs host=a,b port=1,"),
    ("postgresql:///jobs?host=/run/a:1&host=/run/b:2", "dbname=jobs host=/run/a,/run/b port=1,2"),
    ("postgresql:///jobs?host=a:1", "dbname=jobs host=a port=1"),
    ("postgresql:///jobs?host=a,b&port=1,2", "dbname=jobs host=a,b port=1,2"),
    ("postgresql://h/?options=-c%20x%3D1&sslmode=require", "host=h options='-c x=1' sslmode=require"),
]


@pytest.mark.parametrize(("url", "meant"), WRITTEN)
def test_it_says_to_the_driver_what_it_says_to_sqlalchemys_dialect(url: str, meant: str) -> None:
    options = {name: str(said) for name, said in driver_options(parse_url(url)).items() if said}
    assert options == conninfo_to_dict(meant)
    theirs = parse_url(url)
    _, read = theirs.get_dialect()().create_connect_args(theirs)
    assert {name: str(said) for name, said in read.items() if said} == options
    assert sa.make_url(Database(url).url) == theirs


def test_ports_are_said_in_one_way() -> None:
    with pytest.raises(InvalidInput, match="write them in one of the two"):
        Database("postgresql:///jobs?host=a:1&host=b:2&port=3")
