"""Tablets on shards: the store, its wire and its processes."""
