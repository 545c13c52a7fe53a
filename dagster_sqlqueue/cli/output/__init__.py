"""The output of the command line."""
