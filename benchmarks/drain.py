"""Drain: the library's loop with a handler that does nothing, beside the same two statements driven by pgbench.

pgbench runs the finish and the claim of `sql/postgresql/`: one client, the finish of a batch and the claim of the next
one in one transaction, prepared, batches of 100, the buckets in rotation, and the ids and lease numbers that the claim
returned given to the finish. It cannot hold an array, so what the claim answers stands in a WITH and comes back as arrays
in text; rows are not sent to it and nothing is parsed, which is to its advantage. It needs four round trips, one after the
other, where the library's consumer sends both at once, has a second claim under way on another connection, and works
meanwhile, which is not.
"""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from psycopg import conninfo

from benchmarks.harness import SPEC, Bench, Event, Figure, note, rounds
from dagster_sqlqueue import Consumer, Job
from dagster_sqlqueue.db import statements
from dagster_sqlqueue.embedded import launch

COMMAND = "python -m benchmarks drain"
_BATCH = 100
_RATE = re.compile(r"^tps = ([0-9.]+)", re.MULTILINE)
_OUTERMOST = re.compile(r"^(SELECT|UPDATE)", re.MULTILINE)
_PARAMETER = re.compile(r"%\((\w+)\)[sb]")
_SLICE = re.compile(r"(?<=\[):(?=[a-zA-Z])")

_ANSWER = """, answer AS (
{answer}
)
SELECT
    COALESCE(CAST(array_agg(id) AS text), '{{}}') AS ids,
    COALESCE(CAST(array_agg(lease_no) AS text), '{{}}') AS lease_nos,
    COALESCE(CAST(array_agg(CAST('succeeded' AS text)) AS text), '{{}}') AS states,
    COALESCE(CAST(array_agg(CAST(NULL AS text)) AS text), '{{}}') AS results,
    COALESCE(CAST(array_agg(CAST(NULL AS text)) AS text), '{{}}') AS errors,
    CAST((CAST(:buckets AS smallint[]))[2:] || (CAST(:buckets AS smallint[]))[1] AS text) AS buckets
FROM answer
\\gset
"""


def measure(bench: Bench) -> list[Figure]:
    """The figures of draining."""
    jobs = 16_000 if bench.quick else 64_000
    note(f"drain: rounds of {jobs:,} jobs in batches of {_BATCH}, the library and pgbench in turns")

    def library() -> float:
        bench.fill(jobs)
        summary = Consumer(bench.queue, SPEC, _nothing, batch_size=_BATCH).drain()
        assert summary.succeeded == jobs, summary
        return summary.jobs_per_second

    with tempfile.TemporaryDirectory(prefix="sqlqueue-pgbench-") as directory:
        script = Path(directory) / "drain.sql"
        script.write_text(_script(bench.queue.database.schema))

        def pgbench() -> float:
            bench.fill(jobs)
            # The first transaction has nothing to finish, the last one nothing to claim.
            turns = jobs // _BATCH + 1
            rate = jobs / turns * _pgbench(bench, script, turns)
            ((archived,),) = bench.execute("SELECT count(*) FROM {s}.job_archive")
            assert archived == jobs, f"pgbench drained {archived} of {jobs} jobs"
            return rate

        ours, theirs = rounds(3 if bench.quick else 7, library, pgbench)
    shares = [100 * a / b for a, b in zip(ours, theirs, strict=True)]
    return [
        Figure("drain, no-op handler, one process", "jobs/s", ours, COMMAND, floor=20_000),
        Figure("  the same SQL by pgbench", "jobs/s", theirs, COMMAND),
        Figure("  share of pgbench", "%", shares, COMMAND, floor=70),
    ]


def _nothing(job: Job[Event]) -> None:
    pass


def _script(schema: str) -> str:
    claim = _for_pgbench("claim_round_robin", schema)
    last = list(_OUTERMOST.finditer(claim))[-1].start()
    claim = claim[:last].rstrip() + _ANSWER.format(answer=claim[last:])
    return f"BEGIN;\n{_for_pgbench('complete', schema)};\n{claim}\nCOMMIT;\n"


def _for_pgbench(name: str, schema: str) -> str:
    # Of an array's slice pgbench would take what follows the colon for a variable.
    text = _SLICE.sub(": ", statements.load(name, schema))
    return _PARAMETER.sub(r":\1", text).replace("%%", "%")


def _pgbench(bench: Bench, script: Path, transactions: int) -> float:
    buckets = ",".join(str(bucket) for bucket in range(SPEC.bucket_count))
    variables = {
        "buckets": f"{{{buckets}}}",
        "hints": "{}",
        "queue": SPEC.name,
        "revision": bench.queue.settings(SPEC.name).revision,
        "limit": _BATCH,
        "lease_seconds": 60,
        "worker": "pgbench",
        "suspects": "true",
        "single": "true",
        "in_line": "false",
        **dict.fromkeys(("ids", "lease_nos", "states", "results", "errors"), "{}"),
    }
    defined = [f"--define={name}={value}" for name, value in variables.items()]
    server = {name: str(value) for name, value in conninfo.conninfo_to_dict(bench.url).items()}
    # A command line can be read by every user of the machine: the password goes by the environment.
    password = {"PGPASSWORD": server.pop("password")} if server.get("password") else {}
    done = subprocess.run(
        [
            launch.programs() / "pgbench",
            "--no-vacuum",
            "--protocol=prepared",
            "--client=1",
            f"--transactions={transactions}",
            f"--file={script}",
            *defined,
            conninfo.make_conninfo(**server),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **password, "PGOPTIONS": "-c timezone=UTC"},
    )
    rate = _RATE.search(done.stdout)
    if done.returncode or not rate or " 0 (0.000%)" not in done.stdout:
        raise RuntimeError(f"pgbench failed: {done.stderr or done.stdout}")
    return float(rate[1])
