"""Torch: embedding collection, prefetch, models, metrics, trainer.

The public names are listed once, in `__init__.pyi`, and load on first use: configurations need no torch.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
