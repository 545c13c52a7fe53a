"""The PostgreSQL servers that the tests know by name."""

import os

from tests.support import installed_servers

EMBEDDED = "embedded"
GIVEN = "SQLQUEUE_TEST_URL"
INSTALLED = {f"debian-{version}": programs for version, programs in installed_servers().items()}
SERVERS = [GIVEN] if os.environ.get(GIVEN) else [EMBEDDED, *INSTALLED]
