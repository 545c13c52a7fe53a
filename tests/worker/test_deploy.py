"""The files of `deploy/`: checked by systemd where it is there, their commands run."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dagster_sqlqueue import QueueSpec, SqlQueue
from dagster_sqlqueue.cli.exit_codes import MENDED_BY_HAND, Code
from dagster_sqlqueue.worker.shutdown import GRACE_SECONDS
from tests.cli.support import Cli
from tests.gate.patience import PATIENCE
from tests.support import Work, rows, until
from tests.worker.conftest import PROJECT

DEPLOY = PROJECT / "deploy"
DOCS = (PROJECT / "docs" / "deploying.md").read_text()
UNIT = (DEPLOY / "sqlqueue@.service").read_text()
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def setting(name: str) -> str:
    (found,) = re.findall(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    return str(found)


def seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+)s", text)
    assert match, text
    return float(match[1])


def drain_timeout(words: list[str]) -> float:
    return seconds(words[words.index("--drain-timeout") + 1])


def in_image() -> list[str]:
    """The command line of the image."""
    parts = [re.findall(rf"^{word} (\[.*\])$", CONTAINERFILE, re.MULTILINE) for word in ("ENTRYPOINT", "CMD")]
    return [word for (part,) in parts for word in json.loads(part)]


COMMANDS = {
    "unit": shlex.split(setting("ExecStart").replace("%i", "handlers:send_email")),
    "image": in_image(),
    "compose": ["sqlqueue", *COMPOSE["services"]["emails"]["command"]],
}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    def verified(text: str) -> tuple[int, str]:
        (tmp_path / "sqlqueue@.service").write_text(text)
        words = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", "./sqlqueue@.service"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        return done.returncode, done.stderr

    # The program is where it will be installed, not where this runs.
    here = UNIT.replace("/opt/app/.venv/bin/sqlqueue", sys.executable)
    assert verified(here) == (0, "")
    assert verified(here.replace("KillMode=", "KillMood="))[1] != ""


def test_the_unit_waits_for_longer_than_the_drain_and_restarts_what_may_do_better() -> None:
    assert seconds(setting("TimeoutStopSec")) > drain_timeout(COMMANDS["unit"]) + 3 * GRACE_SECONDS
    assert (setting("KillMode"), setting("KillSignal"), setting("Type")) == ("mixed", "SIGTERM", "exec")
    assert setting("Restart") == "always"
    prevented = {Code(int(code)) for code in setting("RestartPreventExitStatus").split()}
    assert prevented == MENDED_BY_HAND
    documented = re.findall(r"^\| (\d+): .* \| (yes|no)[ ,|]", DOCS, re.MULTILINE)
    assert {Code(int(code)) for code, restarts in documented if restarts == "no"} == prevented
    assert {Code(int(code)) for code, _ in documented} >= {
        Code.FAILED,
        Code.DATABASE,
        Code.SCHEMA,
        Code.UNKNOWN,
        Code.CUT_OFF,
    }


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        ("INSERT INTO {s}.schema_version VALUES (9999, 'later', 9999)", Code.SCHEMA),
        ("DELETE FROM {s}.schema_version", Code.SCHEMA),
        ("DELETE FROM {s}.bucket WHERE queue = 'work'; DELETE FROM {s}.queue WHERE name = 'work'", Code.UNKNOWN),
    ],
)
def test_what_the_database_mends_is_started_again(
    url: str, fresh: SqlQueue, spec: QueueSpec[Work], spoil: str, code: Code
) -> None:
    for statement in spoil.split("; "):
        rows(fresh, statement)
    cli = Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": fresh.database.schema})
    cli.refused(code, "work", "tests.worker.jobs:handle", "--drain", "--no-create")
    assert code not in MENDED_BY_HAND
    if code is Code.SCHEMA:
        return
    fresh.create_queue(spec)
    assert cli.run("work", "tests.worker.jobs:handle", "--drain").exit_code == 0


def test_compose_waits_for_longer_than_the_drain() -> None:
    service = COMPOSE["services"]["emails"]
    assert seconds(service["stop_grace_period"]) > drain_timeout(service["command"]) + 3 * GRACE_SECONDS
    assert service["build"]["dockerfile"] == "Containerfile"
    assert "STOPSIGNAL SIGTERM" in CONTAINERFILE
    for line in re.findall(r"^COPY (\S+) ", CONTAINERFILE, re.MULTILINE):
        assert (DEPLOY / line).is_file()


@pytest.mark.prove
def test_prometheus_finds_what_the_services_listen_on(url: str, queue: SqlQueue) -> None:
    services = yaml.safe_load((DEPLOY / "compose.metrics.yaml").read_text())["services"]
    jobs = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"]
    (consumers,) = jobs[1]["dns_sd_configs"]
    (queues,) = jobs[0]["static_configs"]
    command = services["emails"]["command"]
    before = COMPOSE["services"]["emails"]["command"]
    assert " ".join(command).replace("=", " ").split()[: len(before)] == before
    assert (consumers["names"], command[-2]) == (["emails"], f"--metrics-port={consumers['port']}")
    words = services["queues"]["command"]
    assert queues["targets"] == [f"queues:{words[words.index('--port') + 1]}"]
    mounted, at, _ = services["prometheus"]["volumes"][0].split(":")
    assert (DEPLOY / mounted).is_file()
    assert at == "/etc/prometheus/prometheus.yml"

    from deploy.handlers import Email

    queue.create_queue(QueueSpec("emails", Email))
    here = [*command[:-2], "--metrics-port=0", "--metrics-address=127.0.0.1", "--drain"]
    run_there(url, queue.database.schema, here)


def test_the_commands_of_compose_make_the_queue(url: str, schema: str) -> None:
    for name in ("migrate", "create"):
        done = Cli({"SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": schema}).run(*COMPOSE["services"][name]["command"])
        assert done.exit_code == 0, done.output
    with SqlQueue(url, schema=schema) as queue:
        assert [settings.name for settings in queue.queues()] == ["emails"]


def run_there(url: str, schema: str, words: list[str]) -> None:
    environment = {**os.environ, "SQLQUEUE_URL": url, "SQLQUEUE_SCHEMA": schema, "PYTHONPATH": str(PROJECT)}
    subprocess.run([sys.executable, "-m", "dagster_sqlqueue.cli", *words], check=True, env=environment, cwd=DEPLOY)


@pytest.mark.parametrize(
    "name", ["image", *(pytest.param(name, marks=pytest.mark.prove) for name in ("compose", "unit"))]
)
def test_the_command_works_jobs_off_until_sigterm(name: str, url: str, queue: SqlQueue) -> None:
    from deploy.handlers import Email, emails

    queue.create_queue(QueueSpec("emails", Email))
    queue.enqueue_many(emails, [Email(to=f"account {n}") for n in range(20)])
    program, *words = COMMANDS[name]
    assert Path(program).name == "sqlqueue"
    environment = {
        **os.environ,
        "SQLQUEUE_URL": url,
        "SQLQUEUE_SCHEMA": queue.database.schema,
        "PYTHONPATH": str(PROJECT),
    }
    process = subprocess.Popen([sys.executable, "-m", "dagster_sqlqueue.cli", *words], cwd=DEPLOY, env=environment)
    try:
        until(lambda: queue.archived("emails", since_seconds=3_600) == {"succeeded": 20}, "the end of every job")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait(PATIENCE)
