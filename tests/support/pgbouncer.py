"""PgBouncer in transaction mode, where this machine has it, in front of a server of one's own."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
from psycopg import conninfo

from tests.gate.patience import PATIENCE
from tests.support import until

PROGRAM = shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))
"""None: it is not installed."""

_SETTINGS = """
[databases]
* = host={host} port={port}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {home}
auth_type = trust
auth_file = {home}/users
pool_mode = transaction
default_pool_size = {sessions}
max_client_conn = 500
admin_users = pooler_admin
logfile = {home}/log
"""


@contextlib.contextmanager
def pgbouncer(url: str, *, sessions: int = 3, users: Sequence[str] = ()) -> Iterator[str]:
    """PgBouncer for the block; returns its URL.

    Args:
        url: of a server that listens on a socket of the file system and asks for no password.
        sessions: the most that it opens for a database and user.
        users: who may log in beside the user of the URL.
    """
    assert PROGRAM is not None
    known = {name: str(given) for name, given in conninfo.conninfo_to_dict(url).items()}
    account = pwd.getpwnam("pgserver") if os.geteuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="sqlqueue-pgbouncer-") as directory:
        home = Path(directory)
        settings = _SETTINGS.format(home=home, host=known["host"], port=known.get("port", "5432"), sessions=sessions)
        (home / "settings").write_text(settings)
        (home / "users").write_text("".join(f'"{user}" ""\n' for user in [known["user"], "pooler_admin", *users]))
        if account is not None:
            os.chown(home, account.pw_uid, account.pw_gid)
        # As root it refuses to run; of our own group it would be refused where that has fewer rights than everybody.
        running = subprocess.Popen(
            [PROGRAM, str(home / "settings")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=account and account.pw_uid,
            group=account and account.pw_gid,
            extra_groups=[] if account else None,
            cwd=home,
        )
        try:
            through = f"postgresql://{known['user']}@/{known['dbname']}?host={home}&port=6432"
            until(lambda: running.poll() is not None or _answers(through), "PgBouncer")
            assert running.poll() is None, (home / "log").read_text()
            yield through
        finally:
            running.terminate()
            running.wait(PATIENCE)


def _answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=5):
            return True
    except psycopg.OperationalError:
        return False
