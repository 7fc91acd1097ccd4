"""Sessions on their way out and in: bundles, workflows, and what people and tools read."""
