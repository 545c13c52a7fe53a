"""Payloads: checked, written as JSON, brought from old versions to new ones, shown without what is sensitive. No I/O."""
