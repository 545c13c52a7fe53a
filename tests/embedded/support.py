"""What the tests of the embedded server share: copies of its data, queries, and a process that uses it."""

import subprocess
import sys
from pathlib import Path

import psycopg

from dagster_sqlqueue.embedded import supervisor

PROJECT = Path(__file__).resolve().parents[2]
HOLD = """
import signal, sys
from pathlib import Path
from dagster_sqlqueue.embedded import EmbeddedPostgres
with EmbeddedPostgres(Path(sys.argv[1])) as server:
    print(server.url, flush=True)
    signal.pause()
"""


def copied(template: Path, to: Path) -> Path:
    directory = to / "postgres"
    subprocess.run(["cp", "-a", str(template), str(directory)], check=True)
    return directory


def rows(url: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def down(directory: Path) -> bool:
    return supervisor.postmaster(directory) is None


def hold(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(directory)],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def url_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()
