"""The commands, one family of them a module."""
