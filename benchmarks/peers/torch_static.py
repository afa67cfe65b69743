"""DeepFM in plain PyTorch: one static table sized in advance, sparse Adagrad; what a user does without a row store.

The net, learning rates, batches and split are those of `embershard bench staleness clicks=FILE`, so that the accuracies
can stand side by side. One JSON line a seed, then the mean:

    python benchmarks/peers/torch_static.py clicks.parquet --seeds 0 1 2 3 4
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import time
from pathlib import Path

import torch
from click_columns import ID_COLUMNS, ClickColumns, read_clicks
from torch import nn
from torchmetrics.functional.classification import binary_auroc

DIM, BATCH, HIDDEN = 16, 4096, (256, 128)
ROW_LR, DENSE_LR = 0.02, 1e-3
TRAIN_SHARE = 0.9


class StaticDeepFM(nn.Module):
    """Logit = Σ linear weights + Σ_{i<j} ⟨e_i, e_j⟩ + MLP(e_1 … e_F, dense), the rows in two `nn.Embedding`."""

    def __init__(self, ids: int, dense_width: int) -> None:
        super().__init__()
        self.factors = nn.Embedding(ids, DIM, sparse=True)
        nn.init.uniform_(self.factors.weight, -0.01, 0.01)
        self.linear = nn.Embedding(ids, 1, sparse=True)
        nn.init.zeros_(self.linear.weight)
        widths = (len(ID_COLUMNS) * DIM + dense_width, *HIDDEN)
        layers = [layer for wide, next_ in itertools.pairwise(widths) for layer in (nn.Linear(wide, next_), nn.ReLU())]
        self.mlp = nn.Sequential(*layers, nn.Linear(HIDDEN[-1], 1))

    def forward(self, ids: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
        """(B,) logits of ids (B, F) and dense (B, W)."""
        fields = self.factors(ids)
        second_order = 0.5 * (fields.sum(1).square() - fields.square().sum(1)).sum(1)
        deep = self.mlp(torch.cat([fields.flatten(1), dense], 1)).squeeze(1)
        return deep + second_order + self.linear(ids).sum((1, 2))


def train(clicks: ClickColumns, ids: torch.Tensor, distinct: int, seed: int) -> dict[str, object]:
    """One epoch over the first nine tenths in file order; rate, and AUC on the rest."""
    torch.manual_seed(seed)
    dense, label = torch.from_numpy(clicks.dense), torch.from_numpy(clicks.label)
    model = StaticDeepFM(distinct, dense.shape[1])
    rows = torch.optim.Adagrad([model.factors.weight, model.linear.weight], lr=ROW_LR)
    dense_optimizer = torch.optim.Adam(model.mlp.parameters(), lr=DENSE_LR)
    loss_of = nn.BCEWithLogitsLoss()
    cut = int(len(label) * TRAIN_SHARE)
    began = time.perf_counter()
    for start in range(0, cut, BATCH):
        part = slice(start, min(start + BATCH, cut))
        rows.zero_grad()
        dense_optimizer.zero_grad()
        loss_of(model(ids[part], dense[part]), label[part]).backward()
        rows.step()
        dense_optimizer.step()
    seconds = time.perf_counter() - began
    with torch.no_grad():
        logits = torch.cat(
            [model(ids[cut:][s : s + BATCH], dense[cut:][s : s + BATCH]) for s in range(0, len(label) - cut, BATCH)]
        )
    auc = float(binary_auroc(logits, label[cut:].int()))
    return {"peer": "torch_static", "seed": seed, "auc": auc, "examples_per_second": cut / seconds}


def main() -> None:
    """Train once with each seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clicks", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    clicks = read_clicks(arguments.clicks)
    numbers, distinct = clicks.numbered()
    aucs = []
    for seed in arguments.seeds:
        found = train(clicks, torch.from_numpy(numbers), distinct, seed)
        aucs.append(float(str(found["auc"])))
        print(json.dumps(found), flush=True)
    print(json.dumps({"peer": "torch_static", "seeds": len(aucs), "auc": statistics.fmean(aucs)}))


if __name__ == "__main__":
    main()
