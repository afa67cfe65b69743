"""What users may import, and what importing costs."""

from __future__ import annotations

import subprocess
import sys

import embershard as es


def test_every_public_name_loads() -> None:
    missing = [name for name in es.__all__ if getattr(es, name, None) is None]
    assert not missing


def test_importing_the_package_and_mapping_features_loads_no_torch() -> None:
    program = "import sys, embershard as es; es.FeatureMap; es.LocalStore; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == "False"
