"""The lines of failed attempts among a run's events, by the setting of Dagster's instance that docs/dagster.md names."""

import re
from dataclasses import replace
from pathlib import Path

import yaml

from dagster_sqlqueue.orchestration import QueueConsumer
from tests.orchestration.support import Deployment, NewInstance
from tests.support import Work

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dagster.md"


def test_a_runs_events_have_its_failed_attempts_and_its_summary(
    new_instance: NewInstance, deployment: Deployment, consumer: QueueConsumer[Work]
) -> None:
    (setting,) = re.findall(r"`(python_logs: .*?)`", PAGE.read_text(encoding="utf-8"))
    deployment.enqueue_many(2)
    deployment.enqueue(Work(n=99, note="fail"))
    with new_instance(**yaml.safe_load(setting)) as instance:
        run = replace(deployment, instance=instance).drain(consumer)
        lines = [entry.user_message for entry in instance.all_logs(run.run_id)]
    assert sum("attempt 3 of 3: dead letter" in line for line in lines) == 1
    assert sum("5 claimed, 2 succeeded" in line for line in lines) == 1
