"""The settings of a Spark session, and the check of its URLs. No I/O."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from dagster_sqlqueue.errors import InvalidInput

LOG_LEVELS = ("OFF", "FATAL", "ERROR", "WARN", "INFO", "DEBUG", "TRACE", "ALL")
CONNECT_PORT = 15002

_LOCAL = re.compile(r"local(\[(\*|\d+)(, *\d+)?\])?|local-cluster\[\d+, *\d+, *\d+\]")
_CLUSTER = re.compile(r"(spark://|k8s://).+")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
_MEMORY = re.compile(r"\d+[kmgt]b?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """How to open a session.

    Args:
        app_name: what Spark's UI and logs call it.
        master: `local[*]`, or a cluster's URL: `spark://host:7077`, `yarn`, `k8s://…`.
        remote: the URL of a Spark Connect server, `sc://host:15002`, with its parameters (`;token=…`, `;use_ssl=true`);
            None: this process is the driver, under `master`. What belongs to the driver's JVM (memory, UI, log level)
                is then set on the server.
        driver_host: the host name or address by which a cluster's executors find this process; None: as the machine calls
            itself. Local runs do without.
        driver_memory: the heap of the driver's JVM.
        shuffle_partitions: partitions of a shuffle.
        fast_start: compile with the first JIT tier only: a third less start-up, and reading takes a sixth longer, so it is
            for sessions of less than a minute.
        log_level: of what Java writes on standard error.
        ui: serve Spark's UI.
        reach_seconds: how long a master or a Connect server has to answer.
        away_seconds: how long to wait for a Connect server that does not answer any more.
        conf: further settings of Spark's; they win.

    Raises:
        InvalidInput: one of them is not usable.
    """

    app_name: str = "dagster-sqlqueue"
    master: str = "local[*]"
    remote: str | None = None
    driver_host: str | None = None
    driver_memory: str = "2g"
    shuffle_partitions: int = 4
    fast_start: bool = False
    log_level: str = "ERROR"
    ui: bool = False
    reach_seconds: float = 10.0
    away_seconds: float = 60.0
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.log_level.upper() not in LOG_LEVELS:
            raise InvalidInput(f"log_level is {self.log_level!r}; it is one of {', '.join(LOG_LEVELS)}")
        if not self.reach_seconds > 0:
            raise InvalidInput(f"reach_seconds is {self.reach_seconds!r}; it must be more than 0")
        if not self.away_seconds >= 0:
            raise InvalidInput(f"away_seconds is {self.away_seconds!r}; it must not be negative")
        if self.driver_host is not None and not _HOST.fullmatch(self.driver_host):
            raise InvalidInput(f"driver_host is {self.driver_host!r}; write a host name or an address, without a port")
        if self.remote is not None:
            connect_address(self.remote)
            if self.driver_host is not None:
                raise InvalidInput(
                    "driver_host is given beside remote: a Spark Connect server is the driver itself; leave it out"
                )
        else:
            check_master(self.master)
            if not _MEMORY.fullmatch(self.driver_memory):
                raise InvalidInput(
                    f"driver_memory is {self.driver_memory!r}; write a number with a unit, as 512m or 2g"
                )

    @property
    def local(self) -> bool:
        """Whether all of Spark runs in one process of this machine."""
        return self.remote is None and self.master.startswith("local")

    @property
    def where(self) -> str:
        """The master, or the host and port of the Connect server: without its token."""
        return self.master if self.remote is None else "sc://{}:{}".format(*connect_address(self.remote))


def check_master(master: str) -> None:
    """Check that a master's URL is one of those that Spark knows.

    Raises:
        InvalidInput: it is not.
    """
    if master.startswith("sc://"):
        raise InvalidInput(
            f"master is the URL of a Spark Connect server ({_host_of(master)}): give it as `remote`, and leave master out"
        )
    if master != "yarn" and not _LOCAL.fullmatch(master) and not _CLUSTER.fullmatch(master):
        raise InvalidInput(
            f"master is {master!r}, which Spark does not know; write local[*], spark://host:7077, yarn or k8s://…, or give"
            " the URL of a Spark Connect server, sc://host:15002, as `remote`"
        )


def connect_address(remote: str) -> tuple[str, int]:
    """Return the host and the port of a Connect server. The URL itself is in no message: it may hold a token.

    Raises:
        InvalidInput: it is no such URL.
    """
    scheme, separator, _ = remote.partition("://")
    if not separator or scheme != "sc":
        said = f"has the scheme {scheme!r}" if separator else "has no scheme"
        raise InvalidInput(f"remote {said}; write sc://host:15002 (a cluster's master goes into `master`)")
    try:
        parts = urlsplit(remote)
        host, port = parts.hostname, parts.port or CONNECT_PORT
    except ValueError as error:
        # A token may stand in the place of the port.
        raise InvalidInput(f"remote has no usable host and port ({type(error).__name__}); {_SHAPE}") from None
    path, *parameters = parts.path.split(";")
    if not host or path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise InvalidInput(f"remote for {host or 'no host'} is not usable; {_SHAPE}")
    for parameter in parameters:
        name, equals, value = parameter.partition("=")
        if parameter and (not equals or not name or "=" in value or not unquote(value)):
            raise InvalidInput(f"remote for {host}:{port} has a parameter without a value, {name!r}; {_SHAPE}")
    return host, port


_SHAPE = "write sc://host:15002, with parameters after /; as in sc://host:15002/;use_ssl=true;token=…"


def _host_of(url: str) -> str:
    try:
        return "{}:{}".format(*connect_address(url))
    except InvalidInput:
        return "sc://…"
