"""Who is measured beside whom, by which program, and what each does for a job: the duty that its figures are of."""

import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from benchmarks.rivals.node_packages import NODE, Packages

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Contender:
    """One queue, in one way of using it.

    Attributes:
        name: in tables and plots.
        program: a module of this package, or a file of `node/`.
        option: which of the program's ways.
        package: whose version is shown; of npm where the program is Node's.
        duty: what is done for each job, in words.
        jobs: the share of a round's jobs that it gets: less than 1 for one that would take minutes.
        bulk: whether its bulk enqueue is measured; a second way of the same queue needs no second figure.
        ours: whether it is this library.
    """

    name: str
    program: str
    option: str
    package: str
    duty: str
    jobs: float = 1.0
    bulk: bool = True
    ours: bool = False

    @property
    def of_node(self) -> bool:
        """Whether its program is Node's."""
        return self.program.endswith(".mjs")

    def command(self, packages: Packages) -> list[str]:
        """What starts its program."""
        if self.of_node:
            return [str(NODE), str(packages.directory / self.program), self.option]
        return [sys.executable, "-m", f"benchmarks.rivals.{self.program}", self.option]

    def shown(self, packages: Packages) -> str:
        """Its name, with the version of its package where that is another one's."""
        if self.ours:
            return self.name
        version = packages.version(self.package) if self.of_node else metadata.version(self.package)
        return f"{self.name} ({version})"


LEASED, TRANSACTIONAL, SIZED = "ours, leased, 100", "ours, transactional, 100", "ours, leased"
PGMQ, PGMQ_LARGE, _PGMQ_DELETING = "pgmq, archive, 100", "pgmq, archive, 1,000", "pgmq, delete, 1,000"

_FENCED = "payload validated by pydantic, handler called, outcome under a fence, archived, attempts counted"
_UNFENCED = "payload validated by pydantic, handler called, archived; no fence, no limit of attempts"

CONTENDERS = (
    Contender(LEASED, "ours", "leased-100", "dagster-sqlqueue", f"batches of 100: {_FENCED}", ours=True),
    Contender(SIZED, "ours", "leased", "dagster-sqlqueue", f"no batch size given: {_FENCED}", bulk=False, ours=True),
    Contender(
        TRANSACTIONAL,
        "ours",
        "transactional-100",
        "dagster-sqlqueue",
        "batches of 100, one transaction: payload validated by pydantic, handler called with the connection, archived,"
        " attempts counted",
        bulk=False,
        ours=True,
    ),
    Contender(
        PGMQ,
        "pgmq",
        "archive-100",
        "pgmq",
        f"a loop of read and archive, batches of 100: {_UNFENCED}",
    ),
    Contender(
        PGMQ_LARGE,
        "pgmq",
        "archive-1000",
        "pgmq",
        f"a loop of read and archive, batches of 1,000: {_UNFENCED}",
        bulk=False,
    ),
    Contender(
        _PGMQ_DELETING,
        "pgmq",
        "delete-1000",
        "pgmq",
        "a loop of read and delete, batches of 1,000: payload validated by pydantic, handler called; no archive, no fence,"
        " no limit of attempts",
        bulk=False,
    ),
    Contender(
        "graphile-worker",
        "graphile_worker.mjs",
        "",
        "graphile-worker",
        "local queue of 500, completions in batches, 24 at once: JSON parsed, handler called, deleted; no archive, no fence,"
        " attempts counted",
    ),
    Contender(
        "pg-boss",
        "pg_boss.mjs",
        "",
        "pg-boss",
        "batches of 1,000 in bursts: JSON parsed, handler called for the batch, kept as completed; no fence,"
        " attempts counted",
    ),
    Contender(
        "PgQueuer",
        "pgqueuer",
        "",
        "pgqueuer",
        "batches of 100, asyncpg, uvloop: payload validated by pydantic, async handler called, logged in a table; no fence",
    ),
    Contender(
        "Procrastinate",
        "procrastinate",
        "",
        "procrastinate",
        "one at a time, 30 at once: payload validated by pydantic, async handler called, kept as succeeded; no fence,"
        " attempts counted",
        jobs=0.025,
    ),
    Contender(
        "bare table, 1,000",
        "bare_table",
        "1000",
        "psycopg",
        "DELETE … SKIP LOCKED … RETURNING of 1,000 in a transaction: payload validated by pydantic, handler called; nothing"
        " else",
    ),
)

RIVALS = [contender.name for contender in CONTENDERS if not contender.ours and not contender.name.startswith("bare")]
"""Queues that are not this library."""

BUT_PGMQ_DELETING = [name for name in RIVALS if name != _PGMQ_DELETING]

BUT_PGMQ_LARGE = [name for name in BUT_PGMQ_DELETING if name != PGMQ_LARGE]
"""Those without the two of pgmq by batches of 1,000."""
