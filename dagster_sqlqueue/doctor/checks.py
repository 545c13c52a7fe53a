"""The checks of a database, in the order of the report."""

from collections.abc import Iterator, Sequence
from typing import Any

from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.doctor import declarations, pooler_checks, schema_checks, server_checks
from dagster_sqlqueue.doctor.server_checks import Check, Verdict
from dagster_sqlqueue.errors import SchemaMissing, SchemaTooNew, SchemaTooOld
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.schema import migrations


def examine(database: Database, specs: Sequence[QueueSpec[Any]] = ()) -> Iterator[Check]:
    """Run every check, in the order of the report; those that need the tables only if the schema serves the library.

    Args:
        database: the one to examine.
        specs: queues as code declares them, to be compared with those that are there. Without one for a queue it is what its
            consumers noted.

    Raises:
        DatabaseUnavailable: there is nothing to examine.
    """
    schema = _schema(database)
    server = schema_checks.server(database)
    yield schema
    yield pooler_checks.pooler(database)
    for check in (
        server_checks.version,
        server_checks.encoding,
        server_checks.isolation,
        server_checks.durability,
        server_checks.clock,
        server_checks.connections,
        server_checks.transaction_ids,
    ):
        yield check(server)
    yield schema_checks.collation(server, database)
    yield schema_checks.autovacuum(server, database)
    yield schema_checks.pins(server, database)
    yield schema_checks.dead_rows(database)
    if schema.verdict is not Verdict.FAIL:
        yield schema_checks.sql_functions(database)
        yield schema_checks.indexes(database)
        yield from schema_checks.archive(database)
        yield schema_checks.retention(database)
        yield schema_checks.maintenance(database)
        yield schema_checks.queues(database)
        yield declarations.settings(database, specs)
        yield schema_checks.leases(database)
        yield schema_checks.strays(database)
        yield schema_checks.keys(database)
        yield schema_checks.schedules(database)
        yield schema_checks.batches(database)
        if schema.verdict is Verdict.OK:
            yield schema_checks.roles(database)
        else:
            # The grants of the roles are written for the newest schema that this package knows.
            yield Check("roles", Verdict.OK, "not compared: the schema is of another version than this package")


def _schema(database: Database) -> Check:
    try:
        standing = migrations.standing(database)
    except (SchemaMissing, SchemaTooOld, SchemaTooNew) as error:
        found, _, cure = str(error).rpartition(". ")
        return Check("schema", Verdict.FAIL, found, cure)
    if standing.note:
        return Check("schema", Verdict.WARN, standing.note, standing.cure)
    return Check("schema", Verdict.OK, f"version {standing.schema}, the one of this package")
