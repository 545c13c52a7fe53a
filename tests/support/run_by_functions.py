"""The statements that functions run with the owner's rights, for bugs that are planted into them."""

CALLED_AS = {
    "complete": "end_leased",
    "complete_plain": "succeed_leased",
    "complete_locked": "end_locked",
    "complete_plain_locked": "succeed_locked",
}
"""A process that sends the first instead of the second does the same by itself, if it is the owner's."""
