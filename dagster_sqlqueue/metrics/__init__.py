"""Metrics for Prometheus: the state of the queues, from the database, and what the consumers of a process do.

A package on top of the core, which calls its hooks and does not import it. It needs the extra `metrics`.
"""

from dagster_sqlqueue import _extras

with _extras.extra("metrics", "prometheus_client"):
    from dagster_sqlqueue.metrics.consumer_metrics import ConsumerMetrics
    from dagster_sqlqueue.metrics.http import serve
    from dagster_sqlqueue.metrics.queue_collector import QueueCollector
    from dagster_sqlqueue.metrics.worker_collector import WorkerCollector

__all__ = [
    "ConsumerMetrics",
    "QueueCollector",
    "WorkerCollector",
    "serve",
]
