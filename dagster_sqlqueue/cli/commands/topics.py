"""The commands about topics: `publish`, `subscribe`, `unsubscribe`, `subscriptions`."""

import sys
from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from dagster_sqlqueue import display, topics
from dagster_sqlqueue.cli.exit_codes import Code
from dagster_sqlqueue.cli.input import completion, options
from dagster_sqlqueue.cli.input.json_lines import Lines, parsed, progress, say_rejected
from dagster_sqlqueue.cli.output import render, views
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.payload.serialization import without_row
from dagster_sqlqueue.topics.model import Message, Published, PublishedMany, Subscription, SubscriptionMode

_NOTHING = "; nothing was published"

Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The subscription's name within its topic.")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for function in (publish, subscribe, unsubscribe, subscriptions):
        command(app)(function)


def publish(
    session: Session,
    topic: Topic,
    payload: Annotated[
        str | None,
        typer.Argument(
            metavar="JSON",
            show_default=False,
            help="The message, a JSON object; - or nothing reads one per line from standard input.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(metavar="WORD", show_default=False, help="Tag to filter by; can be repeated."),
    ] = None,
    priority: Annotated[str, typer.Option(metavar="0..9", help="Priority of the jobs; higher runs first.")] = "0",
    run_at: Annotated[
        str | None,
        typer.Option(
            metavar="MOMENT", show_default=False, help="When the jobs are due: 2026-01-31T08:00:00Z. Default: now."
        ),
    ] = None,
    ordering_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            show_default=False,
            help="Ordering key of the jobs: an ordered queue runs them one after another.",
        ),
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad",
            show_default=False,
            help="Leave out invalid lines of standard input, and list them (exit code 6). Default: one invalid line"
            " refuses all.",
        ),
    ] = False,
    message_id: Annotated[
        str | None,
        typer.Option(
            "--id",
            metavar="UUID",
            show_default=False,
            help="The message's id: with it, a repeated call enqueues each job only once.",
        ),
    ] = None,
) -> None:
    """Publish a message to a topic, or one for each line of standard input.

    Each message becomes one job for each matching subscription; the output says if none matches. All lines are published
    in one transaction: all of them, or none if one is refused. The options apply to each message.

    Examples: sqlqueue publish orders.paid '{"order": 1, "country": "NZ"}' --tag eu

    sqlqueue publish orders.paid - < orders.jsonl
    """
    settings: dict[str, Any] = {
        "id": None if message_id is None else options.job_id("--id", message_id),
        "tags": tuple(tag or ()),
        "run_at": None if run_at is None else options.moment("--run-at", run_at),
        "priority": options.whole("--priority", priority),
        "ordering_key": ordering_key,
    }
    if payload is None and sys.stdin.isatty():
        raise InvalidInput("no payload: give a JSON object, or - and one JSON object per line on standard input")
    if payload not in (None, "-"):
        if skip_bad:
            raise InvalidInput("--skip-bad applies to the lines of standard input, and a payload was given")
        found = parsed(payload, "the payload", _NOTHING)
        with session.queue() as target:
            try:
                done = topics.Topics(target).publish(topic, found, **settings)
            except InvalidInput as error:
                raise InvalidInput(f"{without_row(error)}{_NOTHING}") from None
        _report(session, done)
        return
    only = None if message_id is None else "--id names one message"
    with session.queue() as target, progress("messages") as advance:
        lines = Lines(lambda found: Message(found, **settings), _NOTHING, advance, skip_bad=skip_bad, only=only)
        try:
            many = topics.Topics(target).publish_many(topic, lines, on_bad_row=lines.on_bad_row)
        except InvalidInput as error:
            raise InvalidInput(lines.with_line(str(error))) from None
    many = replace(many, rejected=lines.with_lines(many.rejected))
    if not (many.messages or many.rejected):
        raise InvalidInput("standard input contained no payload: write one JSON object per line")
    _report_many(session, topic, many)


def subscribe(
    session: Session,
    topic: Topic,
    name: Name,
    queue: Annotated[
        str,
        typer.Argument(metavar="QUEUE", help="The queue that gets the jobs.", autocompletion=completion.queue_names),
    ],
    payload: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            show_default=False,
            help="Only messages whose payload contains this JSON object. Default: all.",
        ),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WORD",
            show_default=False,
            help="Only messages with this tag; if repeated, with all of these tags.",
        ),
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="copy|move",
            help="copy: it gets every matching message. move: of the matching subscriptions in its group, one gets each"
            " message.",
        ),
    ] = SubscriptionMode.COPY.value,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default=False,
            help="With --mode move: the group whose subscriptions compete. Default: those without a group.",
        ),
    ] = None,
    priority: Annotated[
        str | None,
        typer.Option(metavar="0..9", show_default=False, help="Priority of the jobs. Default: the message's."),
    ] = None,
    delay: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", show_default=False, help="How much later than the message the jobs are due: 90, 5m."
        ),
    ] = None,
) -> None:
    """Enqueue the messages of a topic that match a filter as jobs of a queue.

    Publishers need no change. If the subscription exists, it is changed; options that are not given get their defaults.

    Examples: sqlqueue subscribe orders.paid invoices billing --payload '{"country": "NZ"}'

    sqlqueue subscribe orders.paid courier-a parcels --mode move --group couriers
    """
    from dagster_sqlqueue.queue.claim_filter import ClaimFilter

    filter = ClaimFilter(payload=payload, tags=tag or ())
    its = None if priority is None else options.whole("--priority", priority)
    if mode not in list(SubscriptionMode):
        raise InvalidInput(f"--mode is {mode!r}; it must be {' or '.join(SubscriptionMode)}")
    seconds = 0.0 if delay is None else options.seconds("--delay", delay)
    with session.queue() as source:
        made = topics.Topics(source).subscribe(
            topic,
            name,
            queue,
            filter=filter,
            mode=SubscriptionMode(mode),
            group=group,
            priority=its,
            delay_seconds=seconds,
        )
    if session.as_json:
        render.emit_json(asdict(made))
    else:
        render.say(f"{name} is subscribed to {topic}: {_fits(made)} become jobs of {queue}{_settings(made)}")


def unsubscribe(session: Session, topic: Topic, name: Name) -> None:
    """Remove a subscription; its jobs stay.

    Example: sqlqueue unsubscribe orders.paid invoices
    """
    with session.queue() as source:
        was = topics.Topics(source).unsubscribe(topic, name)
    if session.as_json:
        render.emit_json(asdict(was))
    else:
        render.say(f"{name} is not subscribed to {topic} any more; its jobs on {was.queue} stay")


def subscriptions(
    session: Session,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", show_default=False, help="The topic. Default: all topics.")
    ] = None,
    queue: Annotated[
        str | None,
        typer.Option(metavar="QUEUE", show_default=False, help="Only subscriptions whose jobs go to this queue."),
    ] = None,
) -> None:
    """List the subscriptions, with their filters and queues.

    Examples: sqlqueue subscriptions

    sqlqueue subscriptions orders.paid
    """
    with session.queue() as source:
        found = topics.Topics(source).subscriptions(topic, queue=queue)
    if session.as_json:
        render.emit_json([asdict(one) for one in found])
    elif not found:
        render.say("there is no such subscription; create one with: sqlqueue subscribe TOPIC NAME QUEUE")
    else:
        render.table(
            ["topic", "name", "queue", "mode", "payload", "tags", "prio", "delay"],
            [
                [
                    one.topic,
                    one.name,
                    one.queue,
                    f"{one.mode} ({one.group})" if one.group else one.mode,
                    one.payload or "",
                    " ".join(one.tags),
                    "" if one.priority is None else one.priority,
                    views.length(one.delay_seconds) if one.delay_seconds else "",
                ]
                for one in found
            ],
            right=["prio"],
        )


def _fits(made: Subscription) -> str:
    words = [f"contain {made.payload}"] if made.payload else []
    if made.tags:
        words.append(f"have {'the tags' if len(made.tags) > 1 else 'the tag'} {', '.join(made.tags)}")
    return display.printable("messages that " + " and ".join(words) if words else "all messages")


def _settings(made: Subscription) -> str:
    words = []
    if made.mode is SubscriptionMode.MOVE:
        words.append("one of the competing subscriptions gets each" + (f" (group {made.group})" if made.group else ""))
    if made.priority is not None:
        words.append(f"with priority {made.priority}")
    if made.delay_seconds:
        words.append(f"due {views.length(made.delay_seconds)} later")
    return "".join(f", {word}" for word in words)


def _report(session: Session, done: Published) -> None:
    if session.as_json:
        render.emit_json(asdict(done))
    elif not done.matched:
        render.say(f"published {done.id}: it matches no subscription of {done.topic}, and became no job")
    else:
        render.say(f"published {done.id} to {done.topic}:")
        for job in done.jobs:
            known = "" if job.inserted else ", enqueued before"
            render.say(f"  {job.subscription}: job {job.id} on {job.queue}{known}")


def _report_many(session: Session, topic: str, done: PublishedMany) -> None:
    if session.as_json:
        rejected = [{"line": bad.row, "error": bad.error} for bad in done.rejected]
        render.emit_json({"topic": topic, **asdict(done), "rejected": rejected})
    else:
        messages = f"{done.messages:,} {'message' if done.messages == 1 else 'messages'}"
        jobs = f"{done.inserted:,} {'job' if done.inserted == 1 else 'jobs'}"
        known = f"; {done.duplicates:,} had been enqueued before" if done.duplicates else ""
        unmatched = f"; {done.unmatched:,} matched no subscription and became no job" if done.unmatched else ""
        refused = f"; {len(done.rejected):,} refused" if done.rejected else ""
        render.say(f"published {messages} to {topic}: {jobs}{known}{unmatched}{refused}")
        say_rejected(done.rejected)
    if done.rejected:
        raise typer.Exit(Code.PARTLY)
