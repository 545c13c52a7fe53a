"""Check that a standalone master answers at its address, with Spark's protocol, and that YARN's configuration is there.

Spark itself tries for a minute, and its error does not name the address. Without YARN's configuration it only says that
Java has exited.
"""

import os
import socket
import struct
from collections.abc import Mapping
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from dagster_sqlqueue.errors import InvalidInput

# Two messages of Spark's transport, each after its length of eight bytes: a request for a stream, which is refused as
# there is none of that name, and the refusal, which begins with the name again.
_STREAM_REQUEST, _STREAM_FAILURE = 6, 8
_NAME = b"/jars/dagster-sqlqueue-is-it-spark"
_YARN = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_ENCRYPTED = ("spark.ssl.enabled", "spark.ssl.rpc.enabled")


def check_configured(master: str) -> None:
    """Check that Spark finds the configuration of YARN, if that is the master; other masters need none.

    Raises:
        InvalidInput: neither of its variables is set, or one of them names no directory.
    """
    home = os.environ.get("SPARK_CONF_DIR") or Path(_find_spark_home(), "conf")
    if master != "yarn" or Path(home, "spark-env.sh").is_file():  # which may set the variables
        return
    cure = (
        "set HADOOP_CONF_DIR in the environment of this process to the directory with core-site.xml and yarn-site.xml of the"
        " cluster, or use local[*]"
    )
    if not any(name in os.environ for name in _YARN):
        raise InvalidInput(f"Spark's master 'yarn' needs {' or '.join(_YARN)}, and neither is set: {cure}")
    for name in _YARN:
        value = os.environ.get(name)
        if value is not None and not any(Path(part).is_dir() for part in value.split(os.pathsep) if part):
            raise InvalidInput(f"Spark's master 'yarn' needs {name}, which is {value!r}, and no directory: {cure}")


def check_reachable(master: str, seconds: float, conf: Mapping[str, str]) -> None:
    """Check that one of the addresses of a standalone master is a master's; other masters are not checked.

    Args:
        master: its URL.
        seconds: how long each address has to answer.
        conf: the session's settings: where they encrypt the transport, only the connection is tried.

    Raises:
        InvalidInput: none of them is; the message says why of each.
    """
    if not master.startswith("spark://"):
        return
    encrypted = any(conf.get(name, "").lower() == "true" for name in _ENCRYPTED)
    reasons = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=seconds) as connection:
                if encrypted or _is_spark(connection):
                    return
                reasons.append(f"{address}: something else than Spark answers")
        except TimeoutError:
            reasons.append(f"{address}: no answer in {seconds:g} s")
        except (OSError, ValueError, OverflowError) as error:
            reasons.append(f"{address}: {getattr(error, 'strerror', None) or error}")
    raise InvalidInput(
        f"Spark's master {master!r} cannot be reached ({'; '.join(reasons)}). Start it, correct the address, or use local[*]"
    )


def _is_spark(connection: socket.socket) -> bool:
    request = struct.pack(">BI", _STREAM_REQUEST, len(_NAME)) + _NAME
    connection.sendall(struct.pack(">Q", 8 + len(request)) + request)
    wanted = struct.pack(">BI", _STREAM_FAILURE, len(_NAME)) + _NAME
    answer = b""
    while len(answer) < 8 + len(wanted):
        part = connection.recv(1024)
        if not part:
            return False
        answer += part
        if not answer[8:].startswith(wanted[: len(answer) - 8]):
            return False
    return True
