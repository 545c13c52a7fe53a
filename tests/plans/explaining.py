"""What the plan tests share: explaining the library's statements, and jobs to explain them with."""

from collections.abc import Iterator
from functools import cache
from typing import Any
from uuid import UUID

import psycopg

from dagster_sqlqueue import SqlQueue
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.db.execution import execute
from tests.gate.patience import sized
from tests.support import rows
from tests.support.few import few

LANES = 16 * 10
EVERYWHERE = list(range(16))
FROM_THE_BEGINNING: list[str] = []
"""No hint of any bucket."""
LEASE = {"lease_seconds": 60.0, "worker": "w"}
CLAIM = {**LEASE, "suspects": True, "single": True}
BESIDE = sized(20_000, 100_000)
"""How many rows a test puts beside those that it is about."""
PLAN_MODES = few(["force_generic_plan", "force_custom_plan"], 1)
"""The first is the mode of the library's sessions and functions."""
SIZES = few([1, 1_000, 100], 2)
"""Of batches."""

SLACK = 300
"""Pages that every bound allows beside what it counts: where a page of an index splits, and for the few dead rows that other
tests leave (see undoing). Tables that are looked through by mistake have thousands.
"""

_MAY_WRITE = {"ModifyTable", "LockRows", "ProjectSet", "Result"}
_HARMLESS = {"generate_series", "jsonb_array_elements", "jsonb_each_text", "jsonb_to_recordset", "unnest"}


FETCHED = """
    SELECT COALESCE(sum(pg_stat_get_xact_blocks_fetched(c.oid)), 0) FROM pg_class AS c
    WHERE c.oid = ANY (%s::oid[])
"""
"""Pages of tables and indexes that this transaction has touched so far, in whatever statement, plan or function."""

OWN = """
    WITH own AS (SELECT c.oid, c.reltoastrelid FROM pg_class AS c WHERE c.relnamespace = CAST(%s AS regnamespace))
    SELECT array_agg(own.oid) FROM own
    UNION ALL
    SELECT array_agg(t.oid) || array_agg(i.indexrelid)
    FROM own JOIN pg_class AS t ON t.oid = own.reltoastrelid JOIN pg_index AS i ON i.indrelid = t.oid
"""
"""The tables of a schema, their indexes, and where they keep long values."""


class Fetched:
    """Counts the pages of the tables and indexes of a schema that a transaction touches, and none of the catalogue.

    The server hands on what it has counted between transactions: it is the difference within one that counts.
    """

    def __init__(self, connection: "psycopg.Connection[Any]", schema: str) -> None:
        self._connection = connection
        found = connection.execute(OWN.encode(), [f'"{schema}"']).fetchall()
        self._own = [oid for (oids,) in found for oid in oids or []]

    def __call__(self) -> int:
        ((pages,),) = self._connection.execute(FETCHED.encode(), [self._own]).fetchall()
        return int(pages)


def fewest(explained: int, fetched: int) -> int:
    """What a statement touched at the most.

    Each of the two counts that, and something beside it which depends on what ran before: what EXPLAIN says has the pages
    of the catalogue among it, and what the server counted has those that planning and triggers look at.
    """
    return min(explained, fetched)


class Plan:
    """What EXPLAIN said: the nodes of the plan, flattened.

    Args:
        text: the JSON.
        fetched: the pages of tables and indexes that the server counted meanwhile.
    """

    def __init__(self, text: Any, fetched: int | None = None) -> None:
        self.root: dict[str, Any] = text[0]["Plan"]
        self.nodes = list(self._flat(self.root))
        # What other processes have read is counted there.
        self._fetched = None if any(node.get("Workers Launched") for node in self.nodes) else fetched

    def _flat(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", []):
            yield from self._flat(child)

    @property
    def buffers(self) -> int:
        """Pages touched, whether they were in memory or not, of tables and indexes."""
        read = {f"CTE {node['CTE Name']}" for node in self.nodes if node["Node Type"] == "CTE Scan"}
        # What writes and is read by nobody runs after the statement proper, and is counted by itself.
        apart = [node for node in self.nodes if node["Node Type"] == "ModifyTable" and "Subplan Name" in node]
        parts = [self.root, *(node for node in apart if node["Subplan Name"] not in read)]
        explained = sum(int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"]) for node in parts)
        return explained if self._fetched is None else fewest(explained, self._fetched)

    @property
    def only_reads(self) -> bool:
        """Whether nothing is written or locked, as far as the plan shows: a function may do anything."""
        functions = {str(node.get("Function Name")) for node in self.nodes if node["Node Type"] == "Function Scan"}
        return functions <= _HARMLESS and not _MAY_WRITE & {node["Node Type"] for node in self.nodes}

    @property
    def rows_read(self) -> int:
        """Rows that scans of the table of live jobs looked at, with those that a filter threw away."""
        return sum(
            round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
            for node in self.nodes
            if node.get("Relation Name") == "job" and "Scan" in node["Node Type"]
        )

    @property
    def compared(self) -> int:
        """Pairs of rows that joins looked at, and that did not belong together."""
        return sum(round(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"]) for node in self.nodes)

    def rows_of(self, table: str) -> int:
        """Rows that scans of a table, or of partitions named after it, looked at, with those that a filter threw away."""
        return sum(
            round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
            for node in self.nodes
            if str(node.get("Relation Name", "")).startswith(table) and "Scan" in node["Node Type"]
        )

    def read_whole(self, table: str, *, more_than: int = 0) -> set[str]:
        """The tables, or partitions, named after one that were read from end to end, and have more than so many rows."""
        return {
            str(node["Relation Name"])
            for node in self.nodes
            if node["Node Type"] == "Seq Scan"
            and str(node["Relation Name"]).startswith(table)
            and node["Actual Rows"] + node.get("Rows Removed by Filter", 0) > more_than
        }

    def scans(self) -> set[tuple[str, str | None]]:
        """The ways in which the table of live jobs, or an index of it, was read."""
        scans = [node for node in self.nodes if node.get("Relation Name") == "job" and "Scan" in node["Node Type"]]
        bitmaps = [below for node in scans for below in self._flat(node) if below["Node Type"] == "Bitmap Index Scan"]
        return {(node["Node Type"], node.get("Index Name")) for node in scans} | {
            ("Bitmap", node["Index Name"]) for node in bitmaps
        }


class Explainer:
    """Explains the library's statements, prepared on the server as the driver prepares them."""

    def __init__(self, connection: "psycopg.Connection[Any]", schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self._fetched = Fetched(connection, schema)

    @property
    def schema(self) -> str:
        """Where the statements run."""
        return self._schema

    def __call__(self, verb: str, **parameters: Any) -> Plan:
        query, given = self._prepare("verb", verb, parameters)
        try:
            return self._explain(query, given)
        finally:
            self._connection.execute("DEALLOCATE verb")

    def _prepare(self, name: str, verb: str, parameters: dict[str, Any]) -> tuple[str, list[Any]]:
        """Prepare a verb's statement under a name; returns what executes it, and the values of its parameters."""
        text = statements.load(verb, self._schema)
        parameters = {name: given for name, given in parameters.items() if f"%({name})" in text}
        for number, parameter in enumerate(parameters, 1):
            for form in ("s", "b"):
                text = text.replace(f"%({parameter}){form}", f"${number}")
        self._connection.execute(f"PREPARE {name} AS {text.replace('%%', '%')}".encode())
        return self._execute(name, len(parameters)), list(parameters.values())

    def _execute(self, name: str, count: int) -> str:
        return f"EXECUTE {name} " + (f"({', '.join(['%s'] * count)})" if count else "")

    def _explain(self, query: str, given: list[Any]) -> Plan:
        # Reads the catalogue, and marks dead the entries of what other tests undid.
        self._run(f"EXPLAIN (FORMAT JSON) {query}", given)
        query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}"
        plan = self._run(query, given)
        return self._run(query, given) if plan.only_reads else plan

    def _run(self, query: str, given: list[Any]) -> Plan:
        before = self._fetched()
        ((found,),) = psycopg.ClientCursor(self._connection).execute(query.encode(), given)
        return Plan(found, self._fetched() - before)

    def answer(self, verb: str, **parameters: Any) -> tuple[Any, ...]:
        """The only row that the statement returns, in the same transaction."""
        rows = execute(self._connection, statements.load(verb, self._schema), parameters)
        (only,) = rows
        return only

    def read_whole(self, table: str) -> int:
        """Rows of a table that were read otherwise than by an index in this transaction, also by functions."""
        query = "SELECT seq_tup_read FROM pg_stat_xact_all_tables WHERE schemaname = %s AND relname = %s"
        return int(self.run(query, self._schema, table)[0][0])

    def run(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows of a query in the transaction that is undone, with `{s}` for the schema."""
        cursor = self._connection.execute(query.replace("{s}", f'"{self._schema}"').encode(), parameters)
        return cursor.fetchall() if cursor.description else []


class KeptExplainer(Explainer):
    """Explains plans that the session made some time ago, and keeps."""

    def keep(self, verb: str, parameters: dict[str, Any]) -> None:
        """Prepare a verb's statement, and have its plan made from what is in the tables now."""
        query, given = self._prepare(f"kept_{verb}", verb, parameters)
        # A mode that is not one of generic plans makes its own ones five times.
        for _ in range(6):
            self._run(f"EXPLAIN (FORMAT JSON) {query}", given)

    def __call__(self, verb: str, **parameters: Any) -> Plan:
        text = statements.load(verb, self._schema)
        given = [value for name, value in parameters.items() if f"%({name})" in text]
        return self._explain(self._execute(f"kept_{verb}", len(given)), given)


BY_CLAIM = {("Index Scan", "job_claim"), ("Index Only Scan", "job_claim")}
BY_ID = {("Index Scan", "job_pkey"), ("Bitmap Heap Scan", None), ("Bitmap", "job_pkey")}
BY_PLACE = {("Tid Scan", None)}
"""Of rows that the statement has locked before."""


@cache
def running(queue: SqlQueue, count: int, name: str = "work") -> list[UUID]:
    query = "SELECT id FROM {s}.job WHERE queue = %s AND state = 'running' ORDER BY id LIMIT %s"
    return [row[0] for row in rows(queue, query, name, count)]


@cache
def due(queue: SqlQueue, count: int, name: str = "work") -> list[UUID]:
    """Jobs that are due: the same ones for every test, none of which changes them. To choose them reads the whole table."""
    query = (
        "SELECT id FROM {s}.job WHERE queue = %s AND state = 'queued' AND available_at <= now()"
        " ORDER BY md5(id::text) LIMIT %s"
    )
    return [row[0] for row in rows(queue, query, name, count)]


def changes_by_id(plan: Plan, count: int) -> None:
    assert plan.root["Actual Rows"] == count
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    assert plan.buffers <= 25 * count + SLACK
