"""Check whether a pooler is between this process and the server, and whether the URL names it."""

from dagster_sqlqueue.db import session_settings
from dagster_sqlqueue.db.database import Database
from dagster_sqlqueue.db.session_settings import Pooler
from dagster_sqlqueue.doctor.server_checks import Check, Verdict

_TRIES = 3


def pooler(database: Database) -> Check:
    """Check whether the session belongs to the connection, or as it was said.

    A pooler names itself when a connection is made, and another process, the server's, answers. One that lends a session for
    a transaction may answer from another in the next.
    """
    answered = set()
    with database.connection() as connection:
        for _ in range(_TRIES):
            seen = session_settings.is_shared(connection)
            answered.add(session_settings.backend(connection))
    return judge(database.pooler, seen=seen or len(answered) > 1, changes=len(answered) > 1)


def judge(said: Pooler | None, *, seen: bool, changes: bool) -> Check:
    """The verdict.

    Args:
        said: the pooler that the URL, or the caller, names.
        seen: whether one answers.
        changes: whether it answers from changing sessions.
    """
    if said is Pooler.TRANSACTION:
        found = "in transaction mode, as was said" + (
            "" if seen else "; none is seen here, where the switch only costs time"
        )
        return Check("pooler", Verdict.OK, found)
    if said is Pooler.SESSION and changes:
        return Check(
            "pooler",
            Verdict.FAIL,
            "it answers from changing sessions, and was said to lend whole ones",
            "write pooler=transaction in the URL instead of pooler=session: settings and prepared statements get lost",
        )
    if said is Pooler.SESSION:
        return Check("pooler", Verdict.OK, "in session mode, as was said" if seen else "none")
    if seen:
        return Check(
            "pooler",
            Verdict.WARN,
            "another process answers than the one that is connected to; taken for one in transaction mode",
            "say what it is in SQLQUEUE_URL: ?pooler=transaction, or ?pooler=session if it lends whole sessions",
        )
    return Check("pooler", Verdict.OK, "none")
