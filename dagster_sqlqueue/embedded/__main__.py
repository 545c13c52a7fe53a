"""`python -m dagster_sqlqueue.embedded stop DIRECTORY`: stop a server, even while processes use it."""

import sys
from pathlib import Path

from dagster_sqlqueue.embedded import stop_server

if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] != "stop":
        sys.exit("usage: python -m dagster_sqlqueue.embedded stop DIRECTORY")
    stop_server(Path(sys.argv[2]))
