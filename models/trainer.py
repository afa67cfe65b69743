"""Trainer: passes over a click log with evaluation, early stop, checkpoints and exact resume."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import nn

from ..datasets.click_log import ClickLog
from ..embedding.batch_rows import set_batch_threads
from .config import OptimizerConfig, TrainConfig
from .embedding_collection import EmbeddingCollection
from .embedding_output import EmbeddingOutput
from .evaluation import loss_of
from .model_factory import build_dense_optimizer
from .openmp_threads import on_one_thread
from .tensor_batch import TensorBatch
from .train_result import Checkpoints, TrainObserver, TrainResult
from .trainer_state import TrainerState
from .training_run import TrainingRun

SMALL_DENSE = 1 << 18
"""Models of so many parameters are stepped on one thread: the push's threads, at work then, want the other cores."""


class Trainer:
    """Trains a model and the rows it reads.

    model:      takes (EmbeddingOutput, dense (B, W)), gives logits shaped as the labels; without the embeddings in it.
    embeddings: over the store and the feature map.
    Evaluations and checkpoints happen between steps, with all pushes carried out; a run that is stopped at a checkpoint
    and resumed there gives the bits of one that was not stopped, at any pipeline depth.

    Thread safety: one thread.
    """

    def __init__(
        self,
        model: nn.Module,
        embeddings: EmbeddingCollection,
        config: TrainConfig | None = None,
        optimizer: OptimizerConfig | None = None,
    ) -> None:
        self.model = model.to(embeddings.device)
        self.embeddings = embeddings
        self.config = config or TrainConfig()
        self.rows = embeddings.optimizer()
        self.dense = build_dense_optimizer((optimizer or OptimizerConfig()).dense, model)
        self._is_small = sum(parameter.numel() for parameter in model.parameters()) <= SMALL_DENSE

    def fit(
        self,
        log: ClickLog,
        validation: ClickLog | None = None,
        *,
        observer: TrainObserver | None = None,
        checkpoints: Checkpoints | None = None,
        save_every: int | None = None,
        resume: TrainerState | None = None,
    ) -> TrainResult:
        """Train for the configured epochs, or go on from `resume` (its rows are in the store already).

        validation: evaluated every `evaluate_every` steps, or after each epoch.
        checkpoints: saved every `save_every` steps (None: after each epoch) and at the end; with early stop, the
        best one is put back at the end.
        Raises: TrainingDivergedError, TrainedBeforeError, ResumeMismatchError; whatever reading or the store raises."""
        if self.config.threads is not None:
            torch.set_num_threads(self.config.threads)
            set_batch_threads(self.config.threads)
        run = TrainingRun(self, log, validation, observer or TrainObserver(), checkpoints, save_every)
        if resume is None:
            torch.manual_seed(self.config.seed)
        else:
            run.go_on(resume)
        return run.train()

    def step(self, batch: TensorBatch, inputs: EmbeddingOutput) -> torch.Tensor:
        """Train one batch; gives its loss (without the penalty), detached."""
        config = self.config
        loss = loss_of(self.model(inputs, batch.dense), batch)
        total = loss
        if config.embedding_l2 > 0:
            total = loss + config.embedding_l2 * inputs.values().square().sum() / len(batch)
        total.backward()  # type: ignore[no-untyped-call]
        if config.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_([*self.model.parameters(), *self.rows.parameters()], config.clip_norm)
        self.rows.step()
        if self.dense is not None:
            with on_one_thread() if self._is_small else nullcontext():
                self.dense.step()
            self.dense.zero_grad()
        self.rows.zero_grad()
        return loss.detach()
