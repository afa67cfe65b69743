"""Embershard: sparse embeddings and feature maps for CTR and recommendation models."""

__version__ = "0.1.0"
