"""Readers of other agent tools' histories. The sources are only read. Each tool has a module of its name with an `IMPORTER`."""
