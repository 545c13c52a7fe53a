"""The deployment of `make demo` and `make ui`: a database with the queues, a Dagster instance, and their environment."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from dagster_sqlqueue import Database, SqlQueue
from dagster_sqlqueue.embedded import home, serve
from dagster_sqlqueue.errors import InvalidInput
from definitions.daily_analytics import daily_analytics
from definitions.events import events
from definitions.reminders import reminders

PROJECT = Path(__file__).resolve().parent.parent
WORKSPACE = PROJECT / "workspace.yaml"


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running database, and the places of everything."""

    queue: SqlQueue
    dagster_home: Path
    environment: dict[str, str]


@contextmanager
def deployment() -> Iterator[Deployment]:
    """Start the embedded database if it is used, migrate the schema, create the queues; stop the database at the end."""
    directory = home().resolve()
    with ExitStack() as stack:
        dagster_home = _instance(directory)
        url = stack.enter_context(serve(directory / "postgres"))
        queue = stack.enter_context(SqlQueue(url, schema=_schema(), application_name="dagster-sqlqueue/demo"))
        queue.migrate()
        for spec in (events, reminders, daily_analytics):
            queue.create_queue(spec)
        environment = {
            **os.environ,
            "SQLQUEUE_URL": url,
            "SQLQUEUE_HOME": str(directory),
            "DAGSTER_HOME": str(dagster_home),
            "PYTHONPATH": os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")])),
        }
        yield Deployment(queue, dagster_home, environment)


def _schema() -> str:
    return os.environ.get("SQLQUEUE_SCHEMA", "sqlqueue")


def _instance(directory: Path) -> Path:
    """The Dagster instance of this database: the materialisations of one database do not apply to another."""
    name = "dagster"
    if url := os.environ.get("SQLQUEUE_URL"):
        where = f"{Database(url).where} {_schema()}"
        name = f"dagster-{hashlib.sha256(where.encode()).hexdigest()[:8]}"
    try:
        (directory / name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(Path(__file__).with_name("dagster.yaml"), directory / name / "dagster.yaml")
    except OSError as error:
        raise InvalidInput(
            f"the state directory {directory} cannot be written to: {error.strerror}. Set SQLQUEUE_HOME to another one"
        ) from None
    return directory / name


@contextmanager
def running(
    arguments: Sequence[str], environment: dict[str, str], log: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command of this Python environment as a process group of its own; end the group with the block."""
    command = [str(Path(sys.executable).with_name(arguments[0])), *arguments[1:]]
    with ExitStack() as stack:
        output = None if log is None else stack.enter_context(log.open("ab"))
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            end_group(process)


def end_group(process: subprocess.Popen[bytes], patience_seconds: float = 20.0) -> None:
    """Ask a process group to end, wait, and end what is left of it."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        try:
            process.wait(patience_seconds)
        except subprocess.TimeoutExpired:
            continue
    process.wait()
