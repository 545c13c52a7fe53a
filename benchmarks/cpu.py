"""How much CPU the processes have used."""

import os
import resource
from pathlib import Path

from benchmarks.harness import Bench

_TICK = os.sysconf("SC_CLK_TCK")


def own_and_server_seconds(bench: Bench) -> float:
    """What this process, and the server where it runs on this machine, have used until now."""
    mine = resource.getrusage(resource.RUSAGE_SELF)
    return mine.ru_utime + mine.ru_stime + server_seconds(bench)


def server_seconds(bench: Bench) -> float:
    """Of the postmaster's processes, those that have ended among them. 0 for a server of another machine or user."""
    try:
        ((directory,),) = bench.execute("SHOW data_directory")
        postmaster = (Path(directory) / "postmaster.pid").read_text().split()[0]
    except (OSError, PermissionError):
        return 0.0
    while True:
        own, ended = _postmaster_ticks(postmaster)
        living = _living_ticks(postmaster)
        # One that ended between the two was counted twice, or not at all.
        if _postmaster_ticks(postmaster)[1] == ended:
            return (own + ended + living) / _TICK


def _postmaster_ticks(postmaster: str) -> tuple[int, int]:
    """Its own, and those of its processes that have ended."""
    fields = _fields(Path("/proc") / postmaster)
    return int(fields[11]) + int(fields[12]), int(fields[13]) + int(fields[14])


def _living_ticks(postmaster: str) -> int:
    ticks = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            fields = _fields(process)
        except OSError:
            continue
        if fields[1] == postmaster:
            ticks += int(fields[11]) + int(fields[12])
    return ticks


def _fields(process: Path) -> list[str]:
    return (process / "stat").read_text().rpartition(")")[2].split()
