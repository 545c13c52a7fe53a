"""What a queue, a job and an outcome are, and how a job lives. No I/O, and no driver."""
