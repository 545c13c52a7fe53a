"""Uses of the database's URL where a read is planned."""

from psycopg.conninfo import make_conninfo

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.db.urls import parse_url, pooler_of
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.spark.task_connection import APPLICATION, Server


def libpq(url: str) -> str:
    """Return the URL as libpq's `name=value` list: it takes any password, where a URI wants it encoded in libpq's own
    way.
    """
    parsed, pooler = pooler_of(parse_url(url))
    if pooler is Pooler.TRANSACTION:
        raise InvalidInput(
            "the database URL says pooler=transaction, and Spark's tasks set what belongs to their session: give Spark a URL"
            " that goes to the database itself, or to a pooler in session mode"
        )
    # SQLAlchemy's own reading: host=a:1&host=b:2 are several hosts, each with its port.
    _, named = parsed.get_dialect()().create_connect_args(parsed)
    settings = {"connect_timeout": "10", "application_name": APPLICATION, **named}
    settings["client_encoding"] = "UTF8"
    listed = {name: ",".join(value) if isinstance(value, tuple) else value for name, value in settings.items()}
    return make_conninfo(**{name: str(value) for name, value in listed.items()})


def server(url: str, schema: str) -> Server:
    """Return what a task needs of the database."""
    return Server(libpq(url), Database(url).where, parse_url(url).username or "", schema)


def queue_at(url: str, schema: str) -> SqlQueue:
    """Return the queues there, on one connection at a time."""
    return SqlQueue(Database(url, schema=schema, pool_size=1, application_name=APPLICATION))


def check_public(url: str) -> None:
    """Check whether a URL may be an option, which plans and event logs show.

    Raises:
        InvalidInput: it holds a password, or does not parse.
    """
    parsed = parse_url(url)
    if parsed.password is not None or any("password" in name.lower() for name in parsed.query):
        raise InvalidInput(
            "the option 'url' holds a password, and Spark shows options in plans and event logs: name the environment"
            " variable that holds the URL in the option 'url_env', or give the URL to register_source(spark, url)"
        )
