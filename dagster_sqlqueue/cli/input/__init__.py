"""What people say on the command line, read and checked."""
