"""The feature profile as a picture. Needs matplotlib (the `plot` extra)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from .feature_profile import CategoricalProfile, FeatureProfile, NumericProfile

_INK, _BAR, _SOFT, _WARN = "#1f2937", "#2563eb", "#93c5fd", "#dc2626"
_SHOWN_FEATURES, _SHOWN_CURVES = 40, 6


def draw_profile(profile: FeatureProfile, path: str | Path) -> None:
    """Write the picture (PNG, SVG or PDF by the file's suffix): what tells the label, is missing, costs memory.

    Raises: ImportError saying what to install; OSError."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("a picture needs matplotlib: pip install 'embershard[plot]'") from error
    categorical = sorted(profile.categorical, key=_interest)[-_SHOWN_FEATURES:]
    numeric = sorted(profile.numeric, key=lambda p: abs((p.label_auc or 0.5) - 0.5))[-_SHOWN_FEATURES:]
    height = 2.2 + 0.24 * max(len(categorical), 8) + (0.6 + 0.24 * max(len(numeric), 4) if numeric else 0)
    figure = Figure(figsize=(14, height), layout="constrained")
    rows = [max(len(categorical), 8), max(len(numeric), 4)] if numeric else [1]
    grid = figure.add_gridspec(len(rows), 5, height_ratios=rows, width_ratios=[1.3, 0.9, 1.1, 1.1, 1.7])
    _draw_categorical([figure.add_subplot(grid[0, column]) for column in range(4)], categorical)
    _draw_curves(figure.add_subplot(grid[0, 4]), profile.categorical)
    if numeric:
        _draw_numeric(figure.add_subplot(grid[1, :3]), numeric)
        _draw_numeric_auc(figure.add_subplot(grid[1, 3:]), numeric)
    rate = "" if profile.click_rate is None else f", {profile.click_rate:.2%} of them clicks"
    total = sum(p.bytes_at_full_size for p in profile.categorical)
    figure.suptitle(
        f"{profile.rows:,} examples{rate} · {len(profile.categorical)} features with keys, "
        f"{len(profile.numeric)} numbers · {_size(total)} of rows when every key has one",
        color=_INK,
        fontsize=12,
    )
    figure.savefig(path, dpi=110)


def _interest(profile: CategoricalProfile) -> tuple[float, float]:
    return (profile.label_information or 0.0, profile.entropy_bits)


def _bars(axes: Any, names: list[str], values: list[float], texts: list[str], title: str, color: str = _BAR) -> None:
    axes.barh(range(len(names)), values, color=color, height=0.72)
    axes.set_title(title, fontsize=9, color=_INK, loc="left")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    for place, (value, text) in enumerate(zip(values, texts, strict=True)):
        shift, side = (3, "left") if value >= 0 else (-3, "right")
        axes.annotate(
            text, (value, place), (shift, 0), textcoords="offset points", va="center", ha=side, fontsize=7, color=_INK
        )
    axes.margins(x=0.25, y=0.02)


def _draw_categorical(axes: list[Any], profiles: list[CategoricalProfile]) -> None:
    names = [p.name for p in profiles]
    blank = [""] * len(profiles)
    if any(p.label_information is not None for p in profiles):
        information = [p.label_information or 0.0 for p in profiles]
        _bars(axes[0], names, information, [f"{v:.2%}" for v in information], "what the value tells of the label")
    else:
        entropy = [p.entropy_bits for p in profiles]
        _bars(axes[0], names, entropy, [f"{v:.1f}" for v in entropy], "entropy (bits)")
    nulls = [p.null_share for p in profiles]
    _bars(axes[1], blank, nulls, [f"{v:.0%}" if v else "" for v in nulls], "rows without a value", _SOFT)
    axes[1].set_xlim(0, max(1.25 * max(nulls, default=0.0), 0.1))
    distinct = [max(p.distinct, 1.0) for p in profiles]
    _bars(axes[2], blank, distinct, [f"{v:,.0f}" for v in distinct], "distinct values", _SOFT)
    axes[2].set_xscale("log")
    axes[2].set_xlim(1, 30 * max(distinct, default=1.0))
    memory = [float(p.bytes_at_full_size) for p in profiles]
    texts = [
        f"{_size(p.bytes_at_full_size)}, dim {p.dim}→{p.suggested_dim}, ≥{p.suggested_min_count}" for p in profiles
    ]
    _bars(axes[3], blank, memory, texts, "memory; suggested dim, min. count")
    axes[3].set_xlim(0, 2.6 * max(memory, default=1.0))
    axes[3].set_xticks([])


def _draw_curves(axes: Any, profiles: tuple[CategoricalProfile, ...]) -> None:
    """Occurrences by rank: how long the tail is that admission can cut."""
    for profile in sorted(profiles, key=lambda p: -p.distinct)[:_SHOWN_CURVES]:
        counts = np.asarray(profile.rank_counts)
        if len(counts):
            places = np.unique(np.geomspace(1, len(counts), 200).astype(int))
            axes.plot(places, counts[places - 1], label=profile.name, linewidth=1.4)
    axes.set(xscale="log", yscale="log")
    axes.set_title("occurrences by rank, the widest features", fontsize=9, color=_INK, loc="left")
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.lines:
        axes.legend(fontsize=7, frameon=False)


def _draw_numeric(axes: Any, profiles: list[NumericProfile]) -> None:
    """A box a column, as the model sees it, each scaled to its own middle 90 % so that shapes compare."""
    for place, profile in enumerate(profiles):
        quantiles = np.asarray(profile.quantiles)
        low, high = quantiles[1], quantiles[19]
        scaled = (quantiles - low) / (high - low) if high > low else np.full(len(quantiles), 0.5)
        color = _WARN if profile.warning else _BAR
        axes.plot(scaled[[1, 19]], [place, place], color=_SOFT, linewidth=5, solid_capstyle="butt")
        axes.plot(scaled[[5, 15]], [place, place], color=color, linewidth=5, solid_capstyle="butt")
        axes.plot([scaled[10]], [place], "|", color="white", markersize=7)
    labels = [f"{p.name}   {p.quantiles[1]:.3g} … {p.quantiles[19]:.3g}" for p in profiles]
    axes.set_yticks(range(len(profiles)), labels, fontsize=8)
    axes.set_xticks([])
    axes.set_title("numbers: middle 90 %, middle half, median", fontsize=9, color=_INK, loc="left")
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def _draw_numeric_auc(axes: Any, profiles: list[NumericProfile]) -> None:
    values = [(p.label_auc or 0.5) - 0.5 for p in profiles]
    _bars(axes, [p.name for p in profiles], values, [f"{v + 0.5:.3f}" for v in values], "AUC of the number alone − ½")
    axes.axvline(0, color=_INK, linewidth=0.8)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
