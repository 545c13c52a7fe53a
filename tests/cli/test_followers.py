"""`follow`, `group …`, and what `enqueue` and `show` say about callbacks."""

import json

from dagster_sqlqueue import Consumer, QueueSpec, SqlQueue
from dagster_sqlqueue.followers import JobEnded
from tests.cli.support import Cli
from tests.support import Work, value

OWN = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"
GROUP = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2e"


def callbacks(cli: Cli, name: str = "ended") -> list[dict[str, object]]:
    return [job["payload"] for job in cli.json("list", name)]


def test_following_a_job(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(QueueSpec("ended", JobEnded))
    cli.run("enqueue", "work", '{"n": 1}', "--id", OWN)
    options = ["--callback", "ended:succeeded, failed", "--context", '{"team": [1]}']
    assert cli.json("follow", OWN, *options) == {"id": OWN, "live": True, "callbacks": ["ended"]}
    assert cli.run("follow", OWN, *options).stdout == f"ended will get the callback of {OWN}\n"
    (follower,) = cli.json("show", OWN)["followers"]
    assert (follower["queue"], follower["states"], follower["group_id"]) == ("ended", ["succeeded", "failed"], None)
    assert "followed by" in cli.run("show", OWN).stdout
    assert "queue ended (succeeded, failed)" in cli.run("show", OWN).stdout
    Consumer(queue, spec, lambda job: None).drain()
    (payload,) = callbacks(cli)
    assert (payload["job_id"], payload["state"], payload["context"]) == (OWN, "succeeded", {"team": [1]})
    assert cli.run("follow", OWN, *options).stdout == f"{OWN} has ended; callback enqueued on ended\n"
    assert len(callbacks(cli)) == 1
    assert cli.json("show", OWN)["followers"] == []


def test_enqueueing_with_callbacks_and_merging(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(QueueSpec("ended", JobEnded))
    merging = ["--unique-key", "k", "--merge", "--callback", "ended"]
    first = cli.json("enqueue", "work", '{"n": 1}', *merging, "--context", '"ada"')
    again = cli.json("enqueue", "work", '{"n": 2}', *merging, "--context", '"bob"')
    counts = {"queue": "work", "duplicates": 0, "replaced": 0, "rejected": []}
    assert first == {**counts, "inserted": 1, "merged": 0, "id": first["id"]}
    assert again == {**counts, "inserted": 0, "merged": 1, "id": first["id"]}
    said = cli.run("enqueue", "work", '{"n": 3}', "--unique-key", "k", "--merge").stdout
    assert said == f"merged into {first['id']} on work, which has the same unique key\n"
    left = cli.run("enqueue", "work", '{"n": 4}', "--unique-key", "k", "--callback", "ended").stdout
    assert left == "enqueued 0 jobs on work; 1 left out: a live job has the same unique key, or the id is known\n"
    own = ["--id", OWN, "--callback", "ended:failed"]
    assert cli.run("enqueue", "work", '{"n": 5}', *own).stdout == f"enqueued {OWN} on work\n"
    assert cli.run("enqueue", "work", '{"n": 5}', *own).stdout == f"{OWN} was enqueued on work before\n"
    many = cli.json("enqueue", "work", "-", "--callback", "ended", "--skip-bad", stdin='{"n": 6}\n{"n": 7}\n')
    assert (many["inserted"], many["merged"]) == (2, 0)
    Consumer(queue, spec, lambda job: None).drain()
    contexts = [payload["context"] for payload in callbacks(cli)]
    assert sorted(map(str, contexts)) == ["None", "None", "ada", "bob"]


def test_a_group(cli: Cli, queue: SqlQueue, spec: QueueSpec[Work]) -> None:
    queue.create_queue(QueueSpec("ended", JobEnded))
    assert cli.run("group", "list").stdout.startswith("there is no group; open one with")
    opened = cli.json("group", "open", "--callback", "ended", "--context", "7", "--id", GROUP)
    assert (opened["id"], opened["queue"], opened["context"], opened["members"]) == (GROUP, "ended", 7, 0)
    assert cli.run("group", "open", "--id", GROUP).stdout == f"opened group {GROUP}\n"
    cli.run("enqueue", "work", "-", "--group", GROUP, stdin='{"n": 1}\n{"n": 2}\n')
    cli.run("enqueue", "work", '{"n": 3}', "--id", OWN)
    said = cli.run("group", "add", GROUP, OWN).stdout
    assert said == f"group {GROUP} is open: 3 jobs, 3 pending, 0 succeeded, 0 failed, 0 cancelled\n"
    assert f"group {GROUP}" in cli.run("show", OWN).stdout
    assert "is closed: 3 jobs" in cli.run("group", "close", GROUP).stdout
    cli.run("cancel", "work", OWN)
    Consumer(queue, spec, lambda job: None).drain()
    shown = cli.json("group", "show", GROUP)
    jobs = {job["job_id"]: job["state"] for job in shown["jobs"]}
    assert (shown["succeeded"], shown["cancelled"], jobs[OWN]) == (2, 1, "cancelled")
    assert list(cli.json("group", "show", GROUP, "--state", "cancelled")["jobs"]) == [
        {"job_id": OWN, "state": "cancelled"}
    ]
    assert "(the first 1; --limit shows more)" in cli.run("group", "show", GROUP, "--limit", "1").stdout
    assert "has ended: 3 jobs, 0 pending, 2 succeeded" in cli.run("group", "show", GROUP).stdout
    assert "has ended" in cli.run("group", "list").stdout
    assert [found["id"] for found in cli.json("group", "list")] == [GROUP]
    (payload,) = callbacks(cli)
    assert (payload["group_id"], payload["succeeded"], payload["context"]) == (GROUP, 2, 7)
    assert "group" in cli.run("group").stdout


def test_what_is_refused(cli: Cli, queue: SqlQueue) -> None:
    queue.create_queue(QueueSpec("ended", JobEnded))
    cli.run("enqueue", "work", '{"n": 1}', "--id", OWN)
    cli.run("group", "open", "--id", GROUP)
    cli.run("group", "close", GROUP)
    enqueue = ["enqueue", "work", "{}"]
    for arguments, said in (
        ([*enqueue, "--callback", "No"], "queue name 'No' is not usable"),
        ([*enqueue, "--callback", "ended:done"], "states holds 'done'; a job ends as one of 'succeeded'"),
        ([*enqueue, "--callback", "ended:"], "states holds ''"),
        ([*enqueue, "--callback", "ended", "--context", "{a"], "--context '{a' is not JSON"),
        ([*enqueue, "--callback", "ended", "--context", "[" * 60_000], "is not JSON:"),
        ([*enqueue, "--context", "1"], "there is no --callback"),
        ([*enqueue, "--merge", "--replace"], "--replace cannot be combined with --merge"),
        ([*enqueue, "--group", "g"], "--group 'g' is not a group's id"),
        ([*enqueue, "--group", GROUP], "is closed"),
        (["follow", OWN], "there is no --callback"),
        (["follow", "x", "--callback", "ended"], "'x' is not a job's id"),
        (["group", "show", "x"], "the group 'x' is not a group's id"),
        (["group", "show", GROUP, "--state", "queued"], "states holds 'queued'"),
        (["group", "add", GROUP, OWN], "is closed"),
        (["group", "open", "--id", "x"], "--id 'x' is not a group's id"),
    ):
        assert said in cli.refused(2, *arguments), arguments
    for arguments, said in (
        ([*enqueue, "--callback", "nosuch"], "there is no queue 'nosuch'"),
        ([*enqueue, "--group", OWN], f"there is no group {OWN}"),
        (["follow", GROUP, "--callback", "ended"], f"there is no job {GROUP}"),
        (["follow", OWN, "--callback", "nosuch"], "there is no queue 'nosuch'"),
        (["group", "close", OWN], f"there is no group {OWN}"),
        (["group", "show", OWN], f"there is no group {OWN}"),
        (["group", "open", "--callback", "nosuch"], "there is no queue 'nosuch'"),
    ):
        assert said in cli.refused(5, *arguments), arguments
    assert value(queue, "SELECT count(*) FROM {s}.job") == 1
    assert value(queue, "SELECT count(*) FROM {s}.follower") == 0
    assert json.loads(cli.run("list", "work", "--json").stdout)[0]["id"] == OWN
