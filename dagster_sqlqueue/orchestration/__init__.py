"""The queue in Dagster: resource, drain ops and jobs, sensors, fan-out."""

from dagster_sqlqueue.orchestration.assets import build_sqlqueue_asset_spec as build_sqlqueue_asset_spec
from dagster_sqlqueue.orchestration.assets import queue_asset_key as queue_asset_key
from dagster_sqlqueue.orchestration.consumer import DrainConfig as DrainConfig
from dagster_sqlqueue.orchestration.consumer import QueueConsumer as QueueConsumer
from dagster_sqlqueue.orchestration.consumer import build_drain_op as build_drain_op
from dagster_sqlqueue.orchestration.consumer import queue_consumer as queue_consumer
from dagster_sqlqueue.orchestration.fanout import Account as Account
from dagster_sqlqueue.orchestration.fanout import DailyAccount as DailyAccount
from dagster_sqlqueue.orchestration.fanout import build_fanout_asset as build_fanout_asset
from dagster_sqlqueue.orchestration.fanout import build_fanout_schedule as build_fanout_schedule
from dagster_sqlqueue.orchestration.resource import SqlQueueResource as SqlQueueResource
from dagster_sqlqueue.orchestration.schedules import build_sqlqueue_schedules_sensor as build_sqlqueue_schedules_sensor
from dagster_sqlqueue.orchestration.sensor import SensorSettings as SensorSettings
from dagster_sqlqueue.orchestration.sensor import build_sqlqueue_sensor as build_sqlqueue_sensor
