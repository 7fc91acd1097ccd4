"""Models behind the vendors' SDKs. An SDK is imported here and nowhere else."""
