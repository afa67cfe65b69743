"""The feature profile as a picture. Needs matplotlib (the `plot` extra)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..datasets.whole_file import whole_file
from .feature_profile import CategoricalProfile, FeatureProfile, NumericProfile

_INK, _FAINT, _BAR, _SOFT, _WARN = "#1f2937", "#6b7280", "#2563eb", "#93c5fd", "#dc2626"
_SHOWN_FEATURES, _SHOWN_CURVES, _NAME_LENGTH = 40, 6, 26
_INDICATOR = ".is_missing"
_LIFT_RANGE = 1.0  # colours reach from half to twice the overall click rate
_ROW_INCHES, _LETTER_SHARE = 0.27, 0.0145  # height of a row; width of a small letter in the panel of values


def draw_profile(profile: FeatureProfile, path: str | Path) -> None:
    """Write the picture (PNG, SVG or PDF by the file's suffix): what tells the label, is missing, costs memory.

    Raises: ImportError saying what to install; OSError."""
    with whole_file(path) as partial:
        profile_figure(profile).savefig(partial, dpi=110)


def profile_figure(profile: FeatureProfile) -> Any:
    """The picture as a matplotlib `Figure`. Raises: ImportError saying what to install."""
    try:
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError as error:
        raise ImportError("a picture needs matplotlib: pip install 'embershard[plot]'") from error
    categorical = sorted(profile.categorical, key=_interest)[-_SHOWN_FEATURES:]
    indicators = {p.name.removesuffix(_INDICATOR): p for p in profile.numeric if p.name.endswith(_INDICATOR)}
    plain = [p for p in profile.numeric if not p.name.endswith(_INDICATOR)]
    numeric = sorted(plain, key=lambda p: abs((p.label_auc or 0.5) - 0.5))[-_SHOWN_FEATURES:]
    bands = [max(len(categorical), 6)] * bool(categorical) + [max(len(numeric), 6)] * bool(numeric)
    if not bands:
        bands = [1]
    height = 0.9 + sum(0.75 + _ROW_INCHES * rows for rows in bands)
    figure = Figure(figsize=(15, height), layout=ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.08))
    heights = [0.75 / _ROW_INCHES + rows for rows in bands]
    parts = figure.subfigures(len(bands), 1, height_ratios=heights, squeeze=False)[:, 0]
    if categorical:
        _draw_categorical(parts[0], categorical, profile.click_rate)
    if numeric:
        _draw_numbers(parts[-1], numeric, indicators, profile.categorical)
    rate = "" if profile.click_rate is None else f", {profile.click_rate:.2%} of them clicks"
    total = sum(p.bytes_at_full_size for p in profile.categorical)
    figure.suptitle(
        f"{profile.rows:,} examples{rate}  ·  {len(profile.categorical)} features with keys, {len(plain)} numbers  ·  "
        f"{_size(total)} of rows when every key has one",
        color=_INK,
        fontsize=13,
        x=0.01,
        ha="left",
    )
    return figure


def _interest(profile: CategoricalProfile) -> tuple[float, float]:
    return (profile.label_information or 0.0, profile.entropy_bits)


def _draw_categorical(figure: Any, profiles: list[CategoricalProfile], click_rate: float | None) -> None:
    first, without, distinct_axes, memory_axes, values = figure.subplots(
        1, 5, sharey=True, width_ratios=[1.1, 0.7, 0.8, 1.3, 2.9]
    )
    if any(p.label_information is not None for p in profiles):
        information = [p.label_information or 0.0 for p in profiles]
        _bars(first, information, [f"{v:.2%}" for v in information], "tells of the label")
    else:
        entropy = [p.entropy_bits for p in profiles]
        _bars(first, entropy, [f"{v:.1f}" for v in entropy], "entropy (bits)")
    _names(first, [p.name for p in profiles])
    nulls = [p.null_share for p in profiles]
    _bars(without, nulls, [_share(v) for v in nulls], "without a value", _SOFT, limit=1.0)
    distinct = [float(np.log10(max(p.distinct, 1.0))) + 0.15 for p in profiles]
    _bars(distinct_axes, distinct, [f"{p.distinct:,.0f}" for p in profiles], "distinct values (log)", _SOFT)
    memory = [float(p.bytes_at_full_size) for p in profiles]
    _bars(memory_axes, memory, [_table_text(p) for p in profiles], "memory, suggestion", room=2.1)
    _draw_values(figure, values, profiles, click_rate)


def _table_text(profile: CategoricalProfile) -> str:
    change = "" if profile.dim == profile.suggested_dim else f", dim {profile.dim} → {profile.suggested_dim}"
    admission = f", from {profile.suggested_min_count} times" if profile.suggested_min_count > 1 else ""
    return f"{_size(profile.bytes_at_full_size)}{change}{admission}"


def _draw_values(figure: Any, axes: Any, profiles: list[CategoricalProfile], click_rate: float | None) -> None:
    """The most frequent values' shares side by side, coloured by their click rates; what is left white is the tail."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colors, limits = colormaps["coolwarm"], Normalize(-_LIFT_RANGE, _LIFT_RANGE)
    for place, profile in enumerate(profiles):
        occurrences = max(profile.rows * profile.values_per_row, 1.0)
        left = 0.0
        for value in profile.top:
            share = value.count / occurrences
            lift = 0.0
            if click_rate and value.click_rate is not None:
                lift = float(np.log2(max(value.click_rate, 1e-9) / click_rate))
            color = colors(limits(lift)) if click_rate else _SOFT
            axes.barh(place, share, left=left, color=color, height=0.74, edgecolor="white", linewidth=0.6)
            letters = int(share / _LETTER_SHARE) - 1
            text = "no value" if value.value == "(missing)" else value.value or f"key {value.key:x}"
            if letters >= min(len(text), 4):
                ink = "white" if abs(lift) > 0.65 * _LIFT_RANGE else _INK
                axes.text(
                    left + share / 2, place, _short(text, letters), ha="center", va="center", fontsize=7, color=ink
                )
            left += share
    axes.set_xlim(0, 1)
    _frame(axes, "the most frequent values, share of occurrences")
    if click_rate:
        bar = figure.colorbar(ScalarMappable(limits, colors), ax=axes, fraction=0.03, pad=0.01, aspect=12)
        bar.set_ticks([-1, 0, 1], labels=[f"½ × {click_rate:.1%}", f"{click_rate:.1%} click", f"2 × {click_rate:.1%}"])
        bar.ax.tick_params(labelsize=7, colors=_FAINT)
        bar.outline.set_visible(False)


def _draw_numbers(
    figure: Any,
    profiles: list[NumericProfile],
    indicators: dict[str, NumericProfile],
    categorical: tuple[CategoricalProfile, ...],
) -> None:
    has_curves = any(p.rank_counts for p in categorical)
    widths = [2.4, 0.7, 1.5, 1.9] if has_curves else [2.4, 0.7, 1.5]
    axes = figure.subplots(1, len(widths), width_ratios=widths)
    boxes, missing, separates = axes[0], axes[1], axes[2]
    _draw_boxes(boxes, profiles)
    shares = [indicators[p.name].mean if p.name in indicators else 0.0 for p in profiles]
    _bars(missing, shares, [_share(v) for v in shares], "without a value", _SOFT, limit=1.0)
    _draw_auc(separates, profiles, indicators)
    for one in (missing, separates):
        one.set_ylim(boxes.get_ylim())
        one.set_yticks([])
    if has_curves:
        _draw_curves(axes[3], categorical)


def _draw_boxes(axes: Any, profiles: list[NumericProfile]) -> None:
    """A box a number, as the model sees it, each scaled to its own middle 90 % so that shapes compare."""
    for place, profile in enumerate(profiles):
        quantiles = np.asarray(profile.quantiles)
        low, high = quantiles[1], quantiles[19]
        ink = _WARN if profile.warning else _INK
        if high > low:
            scaled = (quantiles - low) / (high - low)
            color = _WARN if profile.warning else _BAR
            axes.plot(scaled[[1, 19]], [place, place], color=_SOFT, linewidth=6, solid_capstyle="butt")
            axes.plot(scaled[[5, 15]], [place, place], color=color, linewidth=6, solid_capstyle="butt")
            axes.plot([scaled[10]] * 2, [place - 0.3, place + 0.3], color=_INK, linewidth=1.6)
        text = f"{low:.3g} … {high:.3g}" if high > low else f"nearly always {low:.3g}"
        axes.text(1.03, place, text, va="center", fontsize=7, color=ink)
    _names(axes, [p.name for p in profiles])
    axes.set_xlim(-0.03, 1.45)
    axes.set_ylim(-0.7, len(profiles) - 0.3)
    _frame(axes, "numbers as the model sees them: middle 90 %, middle half, median")


def _draw_auc(axes: Any, profiles: list[NumericProfile], indicators: dict[str, NumericProfile]) -> None:
    values = [(p.label_auc or 0.5) - 0.5 for p in profiles]
    _bars(axes, values, [""] * len(values), "AUC of the number alone (○: of its absence)")
    absences = [
        (indicators[p.name].label_auc or 0.5) - 0.5 if p.name in indicators and indicators[p.name].mean > 0 else np.nan
        for p in profiles
    ]
    axes.plot(absences, range(len(profiles)), "o", markersize=4, markerfacecolor="white", markeredgecolor=_WARN)
    axes.axvline(0, color=_INK, linewidth=0.8)
    reach = 1.1 * max([0.02, *(abs(v) for v in (*values, *absences) if not np.isnan(v))])
    axes.set_xlim(-reach, 1.35 * reach)
    for place, value in enumerate(values):
        axes.text(1.3 * reach, place, f"{value + 0.5:.3f}", ha="right", va="center", fontsize=7.5, color=_INK)


def _draw_curves(axes: Any, profiles: tuple[CategoricalProfile, ...]) -> None:
    """Occurrences by rank: how long the tail is that admission can cut. Names stand at the ends of the lines."""
    shown = sorted((p for p in profiles if p.rank_counts), key=lambda p: -p.distinct)[:_SHOWN_CURVES]
    for profile in shown:
        counts = np.asarray(profile.rank_counts)
        places = np.unique(np.geomspace(1, len(counts), 200).astype(int))
        axes.plot(places, counts[places - 1], linewidth=1.5, label=_short(profile.name, _NAME_LENGTH))
    axes.set(xscale="log", yscale="log")
    axes.legend(fontsize=7, frameon=False, loc="upper right")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=7, colors=_FAINT)
    axes.set_title("occurrences by rank, widest features", fontsize=9, color=_INK, loc="left")


def _bars(
    axes: Any,
    values: list[float],
    texts: list[str],
    title: str,
    color: str = _BAR,
    *,
    room: float = 0.45,
    limit: float | None = None,
) -> None:
    """A bar a row with its text at its end; `room`: what the texts take beside the longest bar, as a share of it."""
    axes.barh(range(len(values)), values, color=color, height=0.74)
    for place, (value, text) in enumerate(zip(values, texts, strict=True)):
        shift, side = (3, "left") if value >= 0 else (-3, "right")
        axes.annotate(
            text, (value, place), (shift, 0), textcoords="offset points", va="center", ha=side, fontsize=7.5, color=_INK
        )
    longest = max([abs(v) for v in values], default=0.0) or 1.0
    axes.set_xlim(0, (limit or longest) * (1 + room))
    axes.set_ylim(-0.7, len(values) - 0.3)
    _frame(axes, title)


def _frame(axes: Any, title: str) -> None:
    axes.set_title(title, fontsize=9, color=_INK, loc="left")
    axes.set_xticks([])
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(_SOFT)


def _names(axes: Any, names: list[str]) -> None:
    axes.set_yticks(range(len(names)), [_short(name, _NAME_LENGTH) for name in names], fontsize=8.5, color=_INK)


def _short(text: str, letters: int) -> str:
    return text if len(text) <= letters else text[: max(letters - 1, 1)] + "…"


def _share(value: float) -> str:
    return "" if value == 0 else "<1%" if value < 0.01 else f"{value:.0%}"


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"
