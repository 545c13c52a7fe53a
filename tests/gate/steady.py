"""Run `make test` again and again beside processes that keep the machine busy, as `make steady` does.

Usage: python -m tests.gate.steady [--rounds 5] [--load 4] [pytest's arguments]
"""

import argparse
import multiprocessing
import subprocess
import sys
import time


def burn() -> None:
    """Keep one core busy until the process is ended."""
    while True:
        sum(range(100_000))


def main() -> int:
    """Give the first exit code that is not 0, after all rounds."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate.steady")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--load", type=int, default=4, help="how many busy processes there are beside the tests")
    ours, arguments = parser.parse_known_args()
    load = [multiprocessing.Process(target=burn, daemon=True) for _ in range(ours.load)]
    for process in load:
        process.start()
    codes = []
    for number in range(1, ours.rounds + 1):
        began = time.monotonic()
        title = f"round {number} of {ours.rounds}, beside {ours.load} busy processes"
        codes.append(subprocess.run([sys.executable, "-m", "tests.gate", "--title", title, *arguments]).returncode)
        print(f"round {number}: exit code {codes[-1]} after {(time.monotonic() - began) / 60:.1f} min", flush=True)
    return next((code for code in codes if code), 0)


if __name__ == "__main__":
    sys.exit(main())
