"""The torch side: embedding collection, models, metrics, trainer."""
