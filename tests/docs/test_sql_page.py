"""docs/sql.md: its SQL in psql and its JavaScript in Node.js, from top to bottom; and that it names what there is."""

import os
import re
import subprocess
from pathlib import Path

import psycopg
import pytest
from pydantic import BaseModel

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.queue.claim_filter import ClaimFilter
from dagster_sqlqueue.schema import functions
from dagster_sqlqueue.topics import Topics
from tests.api.programs import NODE, install, node_url, psql
from tests.gate.patience import PATIENCE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sql.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"```(sql|js)\n(.*?)```", re.DOTALL)


class Anything(BaseModel, extra="allow"):
    pass


@pytest.fixture
def database(url: str) -> str:
    """A database of its own, with the page's schema and queues."""
    name = "sql_page"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {name}".encode())
        connection.execute(f"CREATE DATABASE {name}".encode())
    made = url.replace("/postgres?", f"/{name}?")
    with SqlQueue(made) as queue:
        queue.migrate()
        for queue_name in ("orders", "letters"):
            queue.create_queue(QueueSpec(queue_name, Anything, max_attempts=1))
        Topics(queue).subscribe("orders.paid", "nz", "orders", filter=ClaimFilter(payload={"country": "NZ"}))
    return made


def test_the_page_runs_from_top_to_bottom(database: str, tmp_path: Path) -> None:
    install(tmp_path)
    blocks = _BLOCK.findall(PAGE)
    assert [language for language, _ in blocks].count("js") == 1
    assert len(blocks) >= 8
    at = [language for language, _ in blocks].index("js")
    output = psql(database, "".join(text for _, text in blocks[:at]))
    script = blocks[at][1]
    (tmp_path / "page.mjs").write_text(script)
    environment = {**os.environ, "SQLQUEUE_URL": node_url(database)}
    done = subprocess.run(
        [NODE, "page.mjs"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert (done.returncode, done.stderr) == (0, "")
    output += psql(database, "".join(text for _, text in blocks[at + 1 :]))
    lines = output.splitlines()
    assert lines.count("f") == 1  # the heartbeat's answer; whatever else the page asks is as it says
    with SqlQueue(database) as queue:
        assert queue.archived("letters", since_seconds=3_600) == {"succeeded": 2}
        assert queue.archived("orders", since_seconds=3_600) == {"succeeded": 1, "cancelled": 2}
        sent = [row.result for row in queue.jobs("letters", archived=True)]
        assert sorted(str(result) for result in sent) == ['{"sent": "carl@example.org"}', '{"sent": true}']
        assert queue.depth("letters").live == 0


def test_every_function_and_error_is_named() -> None:
    for name in functions.names():
        assert re.search(rf"\b{name}\b", PAGE), name
    raised = set(re.findall(r"'(SQ\d{3})'", functions.definitions()))
    assert set(re.findall(r"^\| `(SQ\d{3})` \|", PAGE, re.MULTILINE)) == raised
