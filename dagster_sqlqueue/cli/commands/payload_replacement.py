"""The command `replace-payload`."""

import contextlib
import sys
from typing import Annotated

import typer

from dagster_sqlqueue.cli.commands.job_admin import Verb, report, show_preview
from dagster_sqlqueue.cli.input import options
from dagster_sqlqueue.cli.input.json_lines import parsed
from dagster_sqlqueue.cli.input.selection import queue_of
from dagster_sqlqueue.cli.session import Session, command
from dagster_sqlqueue.db import permissions
from dagster_sqlqueue.errors import InvalidInput
from dagster_sqlqueue.model.queue import QueueSpec
from dagster_sqlqueue.payload.redaction import REDACTED, values_in
from dagster_sqlqueue.payload.serialization import AnyObject, payload_text, without_row
from dagster_sqlqueue.queue.selection import REDRIVABLE_STATES, WAITING_STATES, Selection

_UNCHANGED = "; nothing was changed"


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app, "replace-payload")(replace_payload)


def replace_payload(
    session: Session,
    job: Annotated[str, typer.Argument(metavar="ID", help="The job's id, as shown by list and dead.")],
    payload: Annotated[
        str,
        typer.Argument(metavar="JSON", show_default=False, help="The payload, a JSON object; - reads standard input."),
    ],
    release: Annotated[
        bool, typer.Option("--release", show_default=False, help="Release the job, if it is held: it is due now.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            show_default=False,
            help="Change nothing; check the payload, and show the job if it would be given it.",
        ),
    ] = False,
) -> None:
    """Replace the payload of a job that does not run; a dead letter is redriven with it.

    A queued or held job keeps its state, time, priority, keys and attempts. A failed or cancelled job returns to its queue,
    due now, with a full set of attempts. A running or succeeded job is left unchanged: exit code 6.

    The payload is not checked against the queue's model; this happens when a consumer reads it. If the model has versions,
    include "$version". Sensitive fields, which `sqlqueue show` displays as ***, need their values.

    Examples: sqlqueue replace-payload 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b '{"order": 1}'

    sqlqueue replace-payload 0199a1b2-c3d4-7e5f-8a6b-7c8d9e0f1a2b - --release < payload.json
    """
    id_ = options.job_id("the job", job)
    text = sys.stdin.buffer.read() if payload == "-" else payload
    content = parsed(text, "standard input" if payload == "-" else "the payload", _UNCHANGED)
    verb = Verb((*WAITING_STATES, *REDRIVABLE_STATES), "replaced the payload of", would="given the payload")
    whole = contextlib.nullcontext() if dry_run else permissions.needing("queue_steady")
    with session.queue() as source, whole:
        its = queue_of(source, [id_])
        names = source.catalog.sensitive_names(its)
        if hidden := next((name for name in sorted(names) if REDACTED in values_in(content.root, {name})), None):
            raise InvalidInput(
                f"{hidden} contains {REDACTED!r}, which is displayed in place of the value of a sensitive field; give the"
                f" value itself{_UNCHANGED}"
            )
        spec = QueueSpec(its, AnyObject)
        try:
            if dry_run:
                payload_text(spec, content, 0)
                show_preview(session, source, its, Selection(ids=[id_]), verb)
                return
            decided = source.replace_payload(spec, id_, content, release=release)
        except InvalidInput as error:
            raise InvalidInput(f"{without_row(error)}{_UNCHANGED}") from None
    report(session, its, verb, decided)
