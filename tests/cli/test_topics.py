"""`publish`, `subscribe`, `unsubscribe`, `subscriptions`."""

import json

from dagster_sqlqueue import QueueSpec, SqlQueue
from tests.cli.support import Cli
from tests.support import Work, value

OWN = "0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b"


def test_subscriptions_come_and_go(cli: Cli, queue: SqlQueue) -> None:
    assert "there is no such subscription; create one with" in cli.run("subscriptions").stdout
    options = ["--payload", '{"country": "NZ"}', "--tag", "eu", "--tag", "big", "--priority", "5", "--delay", "5min"]
    made = cli.json("subscribe", "orders", "billing", "work", *options, "--mode", "move", "--group", "g")
    created = made.pop("created_at")
    assert created.endswith("+00:00")
    assert made == {
        "topic": "orders",
        "name": "billing",
        "queue": "work",
        "mode": "move",
        "group": "g",
        "payload": '{"country": "NZ"}',
        "tags": ["big", "eu"],
        "priority": 5,
        "delay_seconds": 300.0,
    }
    said = cli.run("subscribe", "orders", "billing", "work", *options, "--mode", "move", "--group", "g").stdout
    assert said == (
        'billing is subscribed to orders: messages that contain {"country": "NZ"} and have the tags big, eu become jobs of'
        " work, one of the competing subscriptions gets each (group g), with priority 5, due 5 min later\n"
    )
    assert cli.run("subscribe", "orders", "all", "work").stdout == (
        "all is subscribed to orders: all messages become jobs of work\n"
    )
    shown = cli.run("subscriptions", "orders").stdout
    for word in ("billing", "move (g)", '{"country": "NZ"}', "big eu", "5 min", "copy"):
        assert word in shown
    assert [found["name"] for found in cli.json("subscriptions", "--queue", "work")] == ["all", "billing"]
    assert cli.json("subscriptions", "others") == []
    assert "not subscribed to orders any more; its jobs on work stay" in cli.run("unsubscribe", "orders", "all").stdout
    assert cli.json("unsubscribe", "orders", "billing")["created_at"] == created
    assert cli.json("subscriptions") == []


def test_one_message(cli: Cli, queue: SqlQueue) -> None:
    queue.create_queue(QueueSpec("mail", Work))
    cli.run("subscribe", "orders", "billing", "work")
    cli.run("subscribe", "orders", "letters", "mail", "--tag", "eu")
    options = ["--tag", "eu", "--priority", "7", "--run-at", "2037-01-31T08:00:00Z", "--ordering-key", "k", "--id", OWN]
    done = cli.json("publish", "orders", '{"order": 1}', *options)
    assert (done["topic"], done["id"]) == ("orders", OWN)
    assert [(job["subscription"], job["queue"], job["inserted"]) for job in done["jobs"]] == [
        ("billing", "work", True),
        ("letters", "mail", True),
    ]
    (job,) = queue.peek("work")
    assert (str(job.id), job.priority, job.ordering_key) == (done["jobs"][0]["id"], 7, "k")
    assert json.loads(job.payload) == {"order": 1}
    again = cli.run("publish", "orders", '{"order": 1}', *options).stdout.splitlines()
    assert again[0] == f"published {OWN} to orders:"
    assert again[1] == f"  billing: job {job.id} on work, enqueued before"
    assert len(again) == 3
    one = cli.run("publish", "orders", "{}").stdout
    assert "billing: job " in one
    assert "letters" not in one


def test_what_fits_nothing_says_so(cli: Cli, queue: SqlQueue) -> None:
    said = cli.run("publish", "nobody", "{}")
    assert said.exit_code == 0
    assert said.stdout.endswith(": it matches no subscription of nobody, and became no job\n")
    assert cli.json("publish", "nobody", "{}")["jobs"] == []
    cli.run("subscribe", "orders", "billing", "work", "--payload", '{"n": 2}')
    many = cli.run("publish", "orders", "-", stdin='{"n": 1}\n{"n": 2}\n').stdout
    assert many == "published 2 messages to orders: 1 job; 1 matched no subscription and became no job\n"


def test_many_lines(cli: Cli, queue: SqlQueue) -> None:
    cli.run("subscribe", "orders", "a", "work")
    cli.run("subscribe", "orders", "b", "work")
    lines = "".join(f'{{"n": {n}}}\n' for n in range(1_200))
    assert cli.json("publish", "orders", stdin=lines) == {
        "topic": "orders",
        "messages": 1_200,
        "unmatched": 0,
        "inserted": 2_400,
        "duplicates": 0,
        "rejected": [],
    }
    assert queue.depth("work").ready == 2_400
    for _ in range(2):
        once = cli.run("publish", "orders", "-", "--id", OWN, stdin="{}\n").stdout
    assert once == "published 1 message to orders: 0 jobs; 2 had been enqueued before\n"


def test_bad_lines(cli: Cli, queue: SqlQueue) -> None:
    cli.run("subscribe", "orders", "a", "work")
    lines = '{"n": 1}\n\nnonsense\n{"n": "\\u0000"}\n{"n": 3}\n'
    refused = cli.refused(2, "publish", "orders", "-", stdin=lines)
    assert refused.startswith("line 3 is not a JSON object")
    assert refused.endswith("; nothing was published")
    assert cli.refused(2, "publish", "orders", "-", stdin='{}\n{"n": "\\u0000"}\n').startswith(
        "line 2: the payload cannot"
    )
    assert queue.depth("work").live == 0
    done = cli.run("publish", "orders", "-", "--skip-bad", stdin=lines)
    assert done.exit_code == 6
    assert done.stdout.startswith("published 2 messages to orders: 2 jobs; 2 refused\nline 3: is not a JSON object")
    found = json.loads(cli.run("publish", "orders", "-", "--skip-bad", "--json", stdin=lines).stdout)
    assert [bad["line"] for bad in found["rejected"]] == [3, 4]


def test_what_is_refused(cli: Cli, queue: SqlQueue) -> None:
    for arguments, said in (
        (["publish", "no topic", "{}"], "topic 'no topic' is not usable"),
        (["publish", "orders", "[1]"], "the payload is not a JSON object"),
        (["publish", "orders", '{"a": NaN}'], "NaN"),
        (["publish", "orders", "{}", "--priority", "10"], "priority is 10"),
        (["publish", "orders", "{}", "--run-at", "soon"], "'soon' is not a time"),
        (["publish", "orders", "{}", "--id", "1"], "--id '1' is not"),
        (["publish", "orders", "{}", "--tag", ""], "tags must be texts"),
        (["publish", "orders", "{}", "--skip-bad"], "--skip-bad applies to the lines"),
        (["subscribe", "orders", "a"], "Missing argument 'QUEUE'"),
        (["subscribe", "orders", "a b", "work"], "subscription 'a b' is not usable"),
        (["subscribe", "orders", "a", "work", "--payload", "{country: NZ}"], "is not JSON"),
        (["subscribe", "orders", "a", "work", "--payload", "[1]"], "is not a JSON object"),
        (["subscribe", "orders", "a", "work", "--mode", "share"], "--mode is 'share'; it must be copy or move"),
        (["subscribe", "orders", "a", "work", "--group", "g"], "group is 'g' and mode is 'copy'"),
        (["subscribe", "orders", "a", "work", "--priority", "10"], "priority is 10"),
        (["subscribe", "orders", "a", "work", "--delay", "soon"], "--delay is 'soon'"),
        (["unsubscribe", "orders"], "Missing argument 'NAME'"),
        (["subscriptions", "no topic"], "is not usable"),
    ):
        assert said in cli.refused(2, *arguments), arguments
    assert "contained no payload" in cli.refused(2, "publish", "orders", "-", stdin="\n")
    assert "--id names one message, and line 2" in cli.refused(
        2, "publish", "orders", "-", "--id", OWN, stdin="{}\n{}\n"
    )
    assert value(queue, "SELECT count(*) FROM {s}.subscription") == 0
    assert queue.depth("work").live == 0


def test_what_is_not_there(cli: Cli) -> None:
    assert "there is no queue 'nosuch'" in cli.refused(5, "subscribe", "orders", "a", "nosuch")
    assert "there is no queue 'nosuch'" in cli.refused(5, "subscriptions", "--queue", "nosuch")
    assert "topic 'orders' has no subscription 'a'" in cli.refused(5, "unsubscribe", "orders", "a")
