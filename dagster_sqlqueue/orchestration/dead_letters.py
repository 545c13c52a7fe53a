"""The latest dead letters of a queue, for its page."""

from collections.abc import Sequence

from dagster_sqlqueue import display
from dagster_sqlqueue.model.job import DeadLetter
from dagster_sqlqueue.orchestration import markdown
from dagster_sqlqueue.orchestration.page_links import NO_LINKS, PageLinks
from dagster_sqlqueue.queue import SqlQueue
from dagster_sqlqueue.queue.redaction import discreet

_LATEST = 10
_LONG_ERROR = 160


def latest_letters(queue: SqlQueue, name: str) -> Sequence[DeadLetter]:
    """Read the jobs that failed last, without the values of sensitive fields.

    Raises:
        AccessRefused: the database's user is no observer.
    """
    return discreet(queue, name, queue.dead_letters(name, limit=_LATEST))


def letter_list(letters: Sequence[DeadLetter], queue: str, links: PageLinks = NO_LINKS) -> str:
    """List dead letters with their errors, and how to redrive them, in Markdown, without their payloads."""
    # A list: a table of these is wider than the page.
    lines = [
        f"- **{display.moment(letter.finished_at)}**, attempt {letter.attempt} of {letter.max_attempts}:"
        f" {markdown.cell(letter.error or 'no error was kept', _LONG_ERROR)} `{letter.id}`"
        for letter in letters
    ]
    return "\n".join([*lines, "", links.redrive_said(queue, [str(letter.id) for letter in letters])])


def inline_list(letters: Sequence[DeadLetter], queue: str, links: PageLinks = NO_LINKS) -> str:
    """List the latest of these dead letters, as many as the asset's page shows at once."""
    return markdown.most_inline(len(letters), lambda first: letter_list(letters[:first], queue, links))
