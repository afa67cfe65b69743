"""Imports point one way: each package may import only those before it in the data flow."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLOW = ("datasets", "feature_map", "embedding", "ps_server", "models", "cluster", "cli")
WITHOUT_TORCH = ("datasets", "feature_map", "embedding", "ps_server")


def imported_modules(path: Path) -> list[str]:
    """Absolute names of everything `path` imports, relative imports resolved against `embershard.`."""
    package = ("embershard", *path.relative_to(ROOT).parts[:-1])
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names += [f"{module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("package", FLOW)
def test_package_imports_only_those_before_it(package: str) -> None:
    allowed = set(FLOW[: FLOW.index(package) + 1]) | {"__version__"}
    if package == "cli":
        allowed.add("benchmarks")
    offending = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in imported_modules(path)
        if name.startswith("embershard.") and name.split(".")[1] not in allowed
    ]
    assert not offending


@pytest.mark.parametrize("package", WITHOUT_TORCH)
def test_data_side_never_imports_torch(package: str) -> None:
    offending = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / package).rglob("*.py")
        for name in imported_modules(path)
        if name.split(".")[0] in {"torch", "torchmetrics"}
    ]
    assert not offending


def test_packages_init_holds_only_exports() -> None:
    for package in FLOW:
        tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
        for node in tree.body:
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_export = isinstance(node, ast.Assign) and all(
                isinstance(target, ast.Name) and target.id in {"__all__", "__version__"} for target in node.targets
            )
            is_lazy = ast.unparse(node).startswith("__getattr__, __dir__, __all__ = lazy_loader.attach_stub(")
            is_import = isinstance(node, ast.Import | ast.ImportFrom)
            assert is_docstring or is_export or is_lazy or is_import, (package, ast.dump(node))
