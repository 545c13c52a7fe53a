"""The arguments and options of the command line, read and checked."""
