"""A virtual clock around the real engine/: what a machine, a fleet or a policy would do with some traffic."""
