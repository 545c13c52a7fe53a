"""Ports for programs that listen some seconds after they got their port, and ports where nobody does."""

import random
import socket

_OURS = range(20_000, 32_000)
"""Below those that the system gives to those that ask for any: nobody gets one of these before the program does."""


def free_port() -> int:
    """A port of the loopback on which nobody listens, and nobody is going to by chance."""
    while True:
        port = random.SystemRandom().choice(_OURS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
