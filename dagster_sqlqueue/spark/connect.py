"""A session of a Spark Connect server: this process needs no Java, and the server outlives it."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.spark.connect_loss import losses_named, wait_for_server
from dagster_sqlqueue.spark.settings import SparkSettings, connect_address

if TYPE_CHECKING:
    import grpc

logger = logging.getLogger("dagster_sqlqueue")

_MODE = "SPARK_CONNECT_MODE_ENABLED"
"""With this in the environment, `pyspark.sql.functions` makes expressions for Connect: Spark sets it, and leaves it."""


@contextmanager
def remote_session(settings: SparkSettings) -> Iterator[SparkSession]:
    """Yield a session of the server for the block, released at its end; the server goes on.

    Raises:
        InvalidInput: the client's packages are not installed, or nothing that is a Connect server answers in time.
        SparkUnavailable: the server was lost in the block.
    """
    assert settings.remote is not None
    before = os.environ.get(_MODE)
    _check_reachable(settings, settings.remote)
    session = _connect(settings, settings.remote)
    wait_for_server(session, settings.away_seconds)
    try:
        with losses_named(session, settings.where):
            yield session
    finally:
        try:
            session.stop()
        except Exception as error:
            logger.warning("the session of %s was not there any more to be released: %s", settings.where, error)
        if before is None:
            os.environ.pop(_MODE, None)


def running_remote() -> SparkSession | None:
    """Return a session of a Connect server that is open in this process already."""
    if _MODE not in os.environ:
        return None
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    found: Any = RemoteSession.getActiveSession()
    return None if found is None or found.is_stopped else found


def _connect(settings: SparkSettings, remote: str) -> SparkSession:
    conf = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        **settings.conf,
    }
    builder = SparkSession.builder.appName(settings.app_name).remote(remote)
    for key, value in conf.items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise InvalidInput(f"Spark Connect at {settings.where} opens no session: {error}") from error


def _check_reachable(settings: SparkSettings, remote: str) -> None:
    """Ask the server for its version, within a bounded time: PySpark tries again for ten minutes."""
    try:
        import grpc
        from pyspark.sql.connect.client.core import DefaultChannelBuilder
        from pyspark.sql.connect.proto import base_pb2, base_pb2_grpc
    except (ImportError, PySparkException) as error:
        raise InvalidInput(
            f"Spark Connect needs packages that are not installed ({error}): pip install 'dagster-sqlqueue[spark-connect]'"
        ) from None
    target = DefaultChannelBuilder(remote)
    asked = str(uuid4())
    user = base_pb2.UserContext(user_id=target.userId or "")
    channel = target.toChannel()
    try:
        grpc.channel_ready_future(channel).result(settings.reach_seconds)
        server = base_pb2_grpc.SparkConnectServiceStub(channel)  # type: ignore[no-untyped-call]
        version = base_pb2.AnalyzePlanRequest(
            session_id=asked, user_context=user, spark_version=base_pb2.AnalyzePlanRequest.SparkVersion()
        )
        server.AnalyzePlan(version, metadata=target.metadata(), timeout=settings.reach_seconds)
        release = base_pb2.ReleaseSessionRequest(session_id=asked, user_context=user)
        server.ReleaseSession(release, metadata=target.metadata(), timeout=settings.reach_seconds)
    except grpc.FutureTimeoutError:
        raise _unreachable(settings, _silence(settings, remote)) from None
    except grpc.RpcError as error:
        raise _unreachable(settings, _reason(error)) from None
    finally:
        channel.close()


def _silence(settings: SparkSettings, remote: str) -> str:
    """Return why nothing answered: gRPC does not say."""
    try:
        socket.create_connection(connect_address(remote), timeout=settings.reach_seconds).close()
    except OSError as error:
        return error.strerror or str(error)
    return f"nothing that speaks gRPC answered in {settings.reach_seconds:g} s"


def _unreachable(settings: SparkSettings, reason: str) -> InvalidInput:
    return InvalidInput(
        f"Spark Connect at {settings.where} cannot be reached ({reason}). Start the server"
        " (sbin/start-connect-server.sh of Spark), or correct the address in `remote`"
    )


def _reason(error: "grpc.RpcError") -> str:
    code = getattr(error, "code", lambda: None)()
    details = str(getattr(error, "details", lambda: "")() or "").strip()
    name = getattr(code, "name", "")
    if name == "UNIMPLEMENTED":
        return "it speaks gRPC, and is no Spark Connect server"
    return ": ".join(filter(None, [name.lower().replace("_", " "), details[:300]])) or type(error).__name__
