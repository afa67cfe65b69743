"""Embershard: sparse embeddings and feature maps for CTR and recommendation models.

The public names are listed once, in `__init__.pyi`, and load on first use, so that a process which only maps features
never imports torch.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
