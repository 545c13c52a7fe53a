"""Handlers of jobs that meet while they run side by side, in threads and in an event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dagster_sqlqueue import Done, Job
from tests.support import Work

CROWD = ThreadPoolExecutor(8)
"""Where async handlers meet: on a small machine the loop's own executor has fewer threads than jobs that are to meet."""


def handlers(meeting: Callable[[int], None]) -> dict[str, Any]:
    """Return handlers by kind, `threads` and `async`, that call `meeting` with the number of their job."""

    def plain(job: Job[Work]) -> Done:
        meeting(job.payload.n)
        return Done({"n": job.payload.n})

    async def asynchronous(job: Job[Work]) -> Done:
        await asyncio.get_running_loop().run_in_executor(CROWD, meeting, job.payload.n)
        return Done({"n": job.payload.n})

    return {"threads": plain, "async": asynchronous}
