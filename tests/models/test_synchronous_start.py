"""Why the first steps are synchronous: Adagrad's first steps on all fields at once, repeated from stale rows."""

from __future__ import annotations

import numpy as np
import torch
from model_fakes import Features, bags

from embershard.embedding.table_config import Adagrad
from embershard.models.config import FactorizationMachineConfig, OptimizerConfig
from embershard.models.embedding_collection import EmbeddingCollection
from embershard.models.factorization_machine import FactorizationMachine
from embershard.models.prefetch_pipeline import prefetch
from embershard.ps_server import LocalStore

FIELDS, BATCH, STEPS = 20, 128, 15


def factor_accumulators(depth: int, synchronous_steps: int) -> float:
    """Sum of the factors' Adagrad accumulators, after `STEPS` steps of a factorization machine on labels of noise."""
    random = np.random.default_rng(0)
    names = [f"f{field}" for field in range(FIELDS)]
    batches = [
        bags(
            {name: random.integers(0, 8, (BATCH, 1)).tolist() for name in names},
            label=(random.random(BATCH) < 0.25).tolist(),
        )
        for _ in range(STEPS)
    ]
    blocks = FactorizationMachineConfig(dim=8).blocks(OptimizerConfig(rows=Adagrad(lr=0.02)))
    with LocalStore(tablet_bits=0) as store:
        embeddings = EmbeddingCollection(Features.of(**dict.fromkeys(names, "sum")), store, blocks=blocks)
        model, rows = FactorizationMachine(), embeddings.optimizer()
        for batch, inputs in prefetch(batches, embeddings, depth, synchronous_steps=synchronous_steps):
            logit = model(inputs, batch.dense)
            torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label).backward()
            rows.step()
        tables = store.snapshot(0).tables.values()
        return float(sum(table.state[:, 1:].sum() for table in tables))  # column 0 is the linear weight's


def test_stale_first_steps_swell_the_accumulators_and_synchronous_ones_do_not() -> None:
    synchronous = factor_accumulators(0, 0)
    assert factor_accumulators(2, 0) > 5 * synchronous
    assert factor_accumulators(2, 8) < 1.1 * synchronous
