"""Check a database that holds queues for what is wrong, or soon will be, with a remedy for each finding."""

from dagster_sqlqueue.doctor.checks import examine
from dagster_sqlqueue.doctor.server_checks import Check, Verdict

__all__ = ["Check", "Verdict", "examine"]
