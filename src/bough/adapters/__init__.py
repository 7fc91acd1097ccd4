"""Bough under the frameworks people already use, one file each. Nothing here is loaded unless it is imported by name."""
