"""Bundles: one session in one file. docs/format.md describes the format."""
