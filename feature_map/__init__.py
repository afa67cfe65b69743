"""Columns to 64-bit keys."""
