"""What the plan tests share: explaining the library's statements, and jobs to explain them with."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import psycopg

from dagster_sqlqueue import SqlQueue, statements
from dagster_sqlqueue.executors import execute
from tests.core.support import rows

LANES = 16 * 10
PLAN_MODES = ["force_custom_plan", "force_generic_plan"]


class Plan:
    """What EXPLAIN said: the nodes of the plan, flattened."""

    def __init__(self, text: Any) -> None:
        self.root: dict[str, Any] = text[0]["Plan"]
        self.nodes = list(self._flat(self.root))

    def _flat(self, node: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield node
        for child in node.get("Plans", []):
            yield from self._flat(child)

    @property
    def buffers(self) -> int:
        """Pages touched, whether they were in memory or not."""
        read = {f"CTE {node['CTE Name']}" for node in self.nodes if node["Node Type"] == "CTE Scan"}
        # What writes and is read by nobody runs after the statement proper, and is counted by itself.
        apart = [node for node in self.nodes if node["Node Type"] == "ModifyTable" and "Subplan Name" in node]
        parts = [self.root, *(node for node in apart if node["Subplan Name"] not in read)]
        return sum(int(node["Shared Hit Blocks"]) + int(node["Shared Read Blocks"]) for node in parts)

    @property
    def rows_read(self) -> int:
        """Rows that scans of the table of live jobs looked at, with those that a filter threw away."""
        return sum(
            round((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
            for node in self.nodes
            if node.get("Relation Name") == "job" and "Scan" in node["Node Type"]
        )

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

    def __call__(self, verb: str, **parameters: Any) -> Plan:
        text = statements.load(verb, self._schema)
        parameters = {name: given for name, given in parameters.items() if f"%({name})" in text}
        for number, parameter in enumerate(parameters, 1):
            for form in ("s", "b"):
                text = text.replace(f"%({parameter}){form}", f"${number}")
        self._connection.execute(f"PREPARE verb AS {text.replace('%%', '%')}".encode())
        try:
            places = f"({', '.join(['%s'] * len(parameters))})" if parameters else ""
            query = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE verb {places}"
            ((found,),) = psycopg.ClientCursor(self._connection).execute(query.encode(), list(parameters.values()))
            return Plan(found)
        finally:
            self._connection.execute("DEALLOCATE verb")

    def answer(self, verb: str, **parameters: Any) -> tuple[Any, ...]:
        """The only row that the statement gives, in the same transaction."""
        rows = execute(self._connection, statements.load(verb, self._schema), parameters)
        (only,) = rows
        return only

    def run(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Rows of a query in the transaction that is undone, with `{s}` for the schema."""
        cursor = self._connection.execute(query.replace("{s}", f'"{self._schema}"').encode(), parameters)
        return cursor.fetchall() if cursor.description else []


BY_ID = {("Index Scan", "job_pkey"), ("Bitmap Heap Scan", None), ("Bitmap", "job_pkey")}


def running(queue: SqlQueue, count: int, name: str = "work") -> list[UUID]:
    query = "SELECT id FROM {s}.job WHERE queue = %s AND state = 'running' ORDER BY id LIMIT %s"
    return [row[0] for row in rows(queue, query, name, count)]


def due(queue: SqlQueue, count: int, name: str = "work") -> list[UUID]:
    query = (
        "SELECT id FROM {s}.job WHERE queue = %s AND state = 'queued' AND available_at <= now()"
        " ORDER BY md5(id::text) LIMIT %s"
    )
    return [row[0] for row in rows(queue, query, name, count)]


def changes_by_id(plan: Plan, count: int) -> None:
    assert plan.root["Actual Rows"] == count
    assert plan.scans() <= BY_ID
    assert plan.rows_read <= count
    # The first write of a connection reads the catalogue about the table and its partitions too.
    assert plan.buffers <= 25 * count + 150
