"""Exports: keys, raw ids, counts and vectors of tables, in files that other systems read."""

from .exporter import ExportReport, export_tables
from .manifest import ExportedTable, ExportFormat, ExportManifest, ExportOptions
from .storage import read_export_manifest

__all__ = [
    "ExportFormat",
    "ExportManifest",
    "ExportOptions",
    "ExportReport",
    "ExportedTable",
    "export_tables",
    "read_export_manifest",
]
