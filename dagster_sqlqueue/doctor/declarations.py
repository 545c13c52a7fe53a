"""Compare the settings of queues in code and database."""

from collections.abc import Sequence
from typing import Any

from dagster_sqlqueue import display
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.doctor.server_checks import Check, Verdict
from dagster_sqlqueue.model.declaration import declared, difference_cure, difference_line
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.queue.catalog import Catalog

_NAME = "settings"


def settings(database: Database, specs: Sequence[QueueSpec[Any]] = ()) -> Check:
    """Check whether the queues have the settings that their code declares: the code that is given, else the one whose
    consumer began last with other settings than before, as it noted them.

    Args:
        database: where the queues are.
        specs: queues as code declares them.
    """
    there = {queue.name: queue for queue in Catalog(database).queues()}
    code: dict[str, tuple[dict[str, Any], str]] = {
        name: (said, f"the consumer {display.printable(worker)}, {display.moment(noted_at)}")
        for name, said, worker, noted_at in database.run("doctor_declarations", {})
    }
    code |= {spec.name: (declared(spec), "the code given") for spec in specs}
    missing = sorted({spec.name for spec in specs} - there.keys())
    found = [f"there is no queue {name!r}" for name in missing]
    cures = [f"make it with: sqlqueue create MODULE:SPEC, or let its first consumer make {name}" for name in missing]
    for name, (said, by) in sorted(code.items()):
        if name in there and (line := difference_line(said, there[name])):
            found.append(f"{line} ({by})")
            cures.append(f"{difference_cure(said, there[name])}; else change the code")
    if found:
        return Check(_NAME, Verdict.WARN, "; ".join(found), "; ".join(cures))
    known = len(there.keys() & code.keys())
    return Check(_NAME, Verdict.OK, f"as the code declares them, of {known} of {len(there)} queues whose code is known")
