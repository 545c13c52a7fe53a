"""`make demo`: run the main job, and report an error in one line."""

import os
import signal
import sys

from rich.console import Console
from rich.markup import escape

from dagster_sqlqueue.errors import QueueError
from definitions.flights import parse_range


def main() -> int:
    """Run the demo; 0 when the result is right."""
    console = Console()
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.default_int_handler)
    try:
        first, last = parse_range(os.environ.get("FLIGHTS"))
        # The code locations read FLIGHTS when they are imported: import them after it has been checked.
        from definitions import main_job

        main_job.run(console, first, last)
    except KeyboardInterrupt:
        console.print("\n[yellow]interrupted[/]; what was done is kept, `make demo` goes on from there")
        return 130
    except QueueError as error:
        console.print(f"[red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
