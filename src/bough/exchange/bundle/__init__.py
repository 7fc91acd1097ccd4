"""Bundles: one session, whole, in one file. docs/format.md describes the format."""
