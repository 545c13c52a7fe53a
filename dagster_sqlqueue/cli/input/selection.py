"""Which jobs a command applies to: those with given ids, those that match conditions, or all."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from dagster_sqlqueue.cli.input import completion, options
from dagster_sqlqueue.errors import InvalidInput, UnknownJob
from dagster_sqlqueue.queue.selection import ARCHIVE_STATES, LIVE_STATES, Selection

if TYPE_CHECKING:
    from dagster_sqlqueue.queue import SqlQueue

_PANEL = "Which jobs (all given conditions must match)"


def _option(*names: str, metavar: str | None, help_text: str) -> Any:
    return typer.Option(*names, metavar=metavar, show_default=False, rich_help_panel=_PANEL, help=help_text)


_WHICH = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[QUEUE] [ID]...",
        autocompletion=completion.queue_names,
        show_default=False,
        help="Ids of jobs, all of one queue, because the output is about one queue; or the name of a queue, with ids,"
        " conditions or --all.",
    ),
]
_CONDITIONS: dict[str, Any] = {
    "tag": Annotated[
        list[str] | None,
        _option(metavar="WORD", help_text="Jobs with this tag; if repeated, with all of these tags."),
    ],
    "payload": Annotated[
        str | None, _option(metavar="JSON", help_text='Jobs whose payload contains this: \'{"country": "NZ"}\'.')
    ],
    "ordering_key": Annotated[str | None, _option(metavar="KEY", help_text="Jobs with this ordering key.")],
    "error": Annotated[str | None, _option(metavar="TEXT", help_text="Jobs whose last error contains this text.")],
    "since": Annotated[
        str | None,
        _option(
            metavar="MOMENT",
            help_text="Jobs enqueued (ended jobs: ended) at this time or later: 2026-01-31T08:00:00Z.",
        ),
    ],
    "before": Annotated[
        str | None, _option(metavar="MOMENT", help_text="Jobs enqueued (ended jobs: ended) before this time.")
    ],
}
_DRY_RUN = Annotated[
    bool,
    typer.Option(
        "--dry-run", show_default=False, help="Change nothing; show which of the first 5,000 jobs would be selected."
    ),
]


def _state(states: Iterable[str]) -> Any:
    return Annotated[str | None, _option(metavar="STATE", help_text=f"Jobs in this state: {', '.join(states)}.")]


def _all(jobs: str) -> Any:
    return Annotated[bool, _option("--all", metavar=None, help_text=f"{jobs}.")]


def filtered(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a command that lists jobs take the conditions: it is called with a `selection`, None if none was given."""

    def run(session: Any, *, state: str | None, **given: Any) -> Any:
        found = _selection(None, state, {name: given.pop(name) for name in _CONDITIONS}, everything=False)
        return function(session, selection=found, **given)

    return _with(
        function, run, after={"state": (_state((*LIVE_STATES, *ARCHIVE_STATES)), None), **_without_default(_CONDITIONS)}
    )


def selecting(states: Sequence[str], verb: str, *, all_jobs: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a command that decides about jobs take ids, conditions, `--all` and `--dry-run`.

    It is called with a `selection`, with `dry_run`, and with the `queue` that was named, or None if only ids were given:
    see `queue_of`.

    Args:
        states: the states that it applies to; with more than one, the command also takes `--state`.
        verb: the command in words, for messages.
        all_jobs: which jobs `--all` selects, and what happens to others, for the help and a message.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(
            session: Any, *, which: list[str] | None, everything: bool, state: str | None = None, **given: Any
        ) -> Any:
            if state is not None and state not in states:
                raise InvalidInput(f"--state is {state!r}; {verb} applies to jobs that are {' or '.join(states)}")
            queue, ids = _named(which or [])
            found = _selection(ids, state, {name: given.pop(name) for name in _CONDITIONS}, everything=everything)
            if found is None:
                raise InvalidInput(
                    f"no jobs are selected: give ids, a condition, or --all ({all_jobs[0].lower()}{all_jobs[1:]})"
                )
            if queue is None and not ids:
                raise InvalidInput(
                    "no queue is named: conditions and --all select jobs of one queue, so put its name first"
                )
            return function(session, queue=queue, selection=found, **given)

        asked = {"state": (_state(states), None)} if len(states) > 1 else {}
        after = {
            **asked,
            **_without_default(_CONDITIONS),
            "everything": (_all(all_jobs), False),
            "dry_run": (_DRY_RUN, False),
        }
        return _with(function, run, before={"which": (_WHICH, None)}, after=after)

    return decorate


def queue_of(source: "SqlQueue", ids: Sequence[UUID]) -> str:
    """Return the queue that all of the jobs belong to, live or ended.

    Raises:
        InvalidInput: they belong to several queues; the message names two.
        UnknownJob: one belongs to none.
    """
    from dagster_sqlqueue.queue.search import MAX_LIST

    queue = _queue_of(source, ids[0], alone=len(ids) == 1)
    left = dict.fromkeys(ids[1:])
    for archived in (False, True):
        wanted = list(left)
        for at in range(0, len(wanted), MAX_LIST):
            some = Selection(ids=wanted[at : at + MAX_LIST])
            for job in source.jobs(queue, some, limit=MAX_LIST, archived=archived):
                left.pop(job.id, None)
    for id_ in left:  # of another queue, of none, or redriven between the two reads
        if (other := _queue_of(source, id_, alone=False)) != queue:
            raise InvalidInput(
                f"the jobs belong to several queues: {ids[0]} to {queue}, {id_} to {other}; nothing was changed. Run the"
                " command for each queue separately"
            )
    return queue


def _queue_of(source: "SqlQueue", id_: UUID, *, alone: bool) -> str:
    try:
        return source.job(id_).queue
    except UnknownJob as error:
        if alone:
            raise
        raise UnknownJob(
            f"{error}; nothing was changed. To decide about the jobs that exist, put the queue's name in front of the ids"
        ) from None


def _named(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the queue and the ids: no queue name contains a hyphen, and every id as it is shown has four."""
    return (words[0], list(words[1:])) if words and "-" not in words[0] else (None, list(words))


def _selection(
    ids: list[str] | None, state: str | None, conditions: dict[str, Any], *, everything: bool
) -> Selection | None:
    # An empty text was given too: in a script, by a variable that is not set.
    given = [f"--{name.replace('_', '-')}" for name, value in conditions.items() if value not in (None, [])]
    given.extend([] if state is None else ["--state"])
    kinds = [*(["ids"] if ids else []), *(["--all"] if everything else []), *given[:1]]
    if len(kinds) > 1:
        raise InvalidInput(f"{' and '.join(kinds)} cannot be combined; give ids, conditions, or --all")
    if ids:
        return Selection(ids=[options.job_id("the job", text) for text in ids])
    if everything:
        return Selection(all=True)
    empty = [name for name, value in conditions.items() if value == ""]
    if empty:
        raise InvalidInput(f"--{empty[0].replace('_', '-')} is empty")
    if not given:
        return None
    return Selection(
        tags=conditions["tag"] or (),
        payload=conditions["payload"],
        ordering_key=conditions["ordering_key"],
        state=state,
        error_contains=conditions["error"],
        since=_moment("--since", conditions["since"]),
        before=_moment("--before", conditions["before"]),
    )


def _moment(option: str, text: str | None) -> datetime | None:
    return None if text is None else options.moment(option, text)


def _without_default(annotations: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {name: (annotation, None) for name, annotation in annotations.items()}


def _with(
    function: Callable[..., Any],
    run: Callable[..., Any],
    *,
    after: dict[str, tuple[Any, Any]],
    before: dict[str, tuple[Any, Any]] | None = None,
) -> Callable[..., Any]:
    """`run` with the name, the help and the parameters of `function`; those that it fills in are replaced by options."""
    own = inspect.signature(function).parameters
    replaced = ("selection", "dry_run", *(["queue"] if before else []))
    session, *rest = [parameter for name, parameter in own.items() if name not in replaced]

    def parameters(found: dict[str, tuple[Any, Any]]) -> list[inspect.Parameter]:
        kind = inspect.Parameter.KEYWORD_ONLY
        return [inspect.Parameter(name, kind, default=value, annotation=a) for name, (a, value) in found.items()]

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*parameters(before or {}), *rest)]
    run.__signature__ = inspect.Signature([session, *keyword, *parameters(after)])  # type: ignore[attr-defined]
    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    return run
