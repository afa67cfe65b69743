"""Workloads that are measured against a reference in the same run."""
