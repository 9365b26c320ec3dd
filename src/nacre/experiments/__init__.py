"""Experiments: a method on a scenario, its record and its tables."""
