"""The queue in Dagster: resource, drain ops and jobs, sensors, assets and checks, fan-out, launchpad, component."""

from dagster_shared.libraries import DagsterLibraryRegistry as _DagsterLibraryRegistry

from dagster_sqlqueue.__about__ import __version__
from dagster_sqlqueue.orchestration.assets import (
    QueueAssetData,
    SqlQueueTranslator,
    asset_key_of,
    build_sqlqueue_asset_spec,
    queue_asset_key,
)
from dagster_sqlqueue.orchestration.checks import CheckThresholds, build_sqlqueue_checks
from dagster_sqlqueue.orchestration.cleanup import build_cleanup_sensors
from dagster_sqlqueue.orchestration.component import SqlQueueComponent, shared_resource
from dagster_sqlqueue.orchestration.consumer import QueueConsumer, queue_consumer
from dagster_sqlqueue.orchestration.create_job import build_create_job
from dagster_sqlqueue.orchestration.deadlines import build_deadline_check
from dagster_sqlqueue.orchestration.definitions import build_sqlqueue_definitions
from dagster_sqlqueue.orchestration.drain import DrainConfig, DrainMode, build_drain_op
from dagster_sqlqueue.orchestration.fanout import Account, DailyAccount, build_fanout_asset, build_fanout_schedule
from dagster_sqlqueue.orchestration.group_ops import (
    EnqueuedGroup,
    GroupConfig,
    build_group_op,
    enqueue_group,
    group_of_run,
    group_results,
)
from dagster_sqlqueue.orchestration.group_sensor import build_group_sensor
from dagster_sqlqueue.orchestration.group_wait import WaitConfig, await_group, build_wait_op, wait_for_group
from dagster_sqlqueue.orchestration.io_manager import SqlQueueIOManager, build_sqlqueue_io_manager
from dagster_sqlqueue.orchestration.launchpad import build_sqlqueue_launchpad_jobs
from dagster_sqlqueue.orchestration.leased_jobs import LeasedJob
from dagster_sqlqueue.orchestration.maintenance import build_maintenance_schedule
from dagster_sqlqueue.orchestration.observe_job import build_observe_job
from dagster_sqlqueue.orchestration.ops import (
    ClaimConfig,
    EnqueueConfig,
    WriteConfig,
    build_claim_op,
    build_complete_op,
    build_enqueue_op,
    build_fail_op,
    claim_jobs,
    complete_jobs,
    enqueue_jobs,
    fail_jobs,
)
from dagster_sqlqueue.orchestration.resource import SqlQueueResource
from dagster_sqlqueue.orchestration.run_claims import (
    RETRY_ALL_STEPS,
    build_give_back_hook,
    give_back_on_failure,
    still_held,
)
from dagster_sqlqueue.orchestration.schedules import build_sqlqueue_schedules_sensor
from dagster_sqlqueue.orchestration.sensor import build_sqlqueue_sensor
from dagster_sqlqueue.orchestration.sensor_settings import SensorSettings
from dagster_sqlqueue.orchestration.summary import output_metadata
from dagster_sqlqueue.orchestration.testing import Drained, drain_in_process, resource_of

__all__ = [
    "RETRY_ALL_STEPS",
    "Account",
    "CheckThresholds",
    "ClaimConfig",
    "DailyAccount",
    "DrainConfig",
    "DrainMode",
    "Drained",
    "EnqueueConfig",
    "EnqueuedGroup",
    "GroupConfig",
    "LeasedJob",
    "QueueAssetData",
    "QueueConsumer",
    "SensorSettings",
    "SqlQueueComponent",
    "SqlQueueIOManager",
    "SqlQueueResource",
    "SqlQueueTranslator",
    "WaitConfig",
    "WriteConfig",
    "asset_key_of",
    "await_group",
    "build_claim_op",
    "build_cleanup_sensors",
    "build_complete_op",
    "build_create_job",
    "build_deadline_check",
    "build_drain_op",
    "build_enqueue_op",
    "build_fail_op",
    "build_fanout_asset",
    "build_fanout_schedule",
    "build_give_back_hook",
    "build_group_op",
    "build_group_sensor",
    "build_maintenance_schedule",
    "build_observe_job",
    "build_sqlqueue_asset_spec",
    "build_sqlqueue_checks",
    "build_sqlqueue_definitions",
    "build_sqlqueue_io_manager",
    "build_sqlqueue_launchpad_jobs",
    "build_sqlqueue_schedules_sensor",
    "build_sqlqueue_sensor",
    "build_wait_op",
    "claim_jobs",
    "complete_jobs",
    "drain_in_process",
    "enqueue_group",
    "enqueue_jobs",
    "fail_jobs",
    "give_back_on_failure",
    "group_of_run",
    "group_results",
    "output_metadata",
    "queue_asset_key",
    "queue_consumer",
    "resource_of",
    "shared_resource",
    "still_held",
    "wait_for_group",
]

_DagsterLibraryRegistry.register("dagster-sqlqueue", __version__, is_dagster_package=False)
