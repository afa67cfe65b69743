"""Rows: tables, optimizers, policies, checkpoints, export."""
