"""Engines to compare Octavo with: each module installs one from packages, gives it its best settings and starts it."""
