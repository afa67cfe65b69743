"""The same seed gives the same bits; stop and resume give those of a run that was not stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from embershard.cli.evaluation import evaluate_source

from .job import Job, assert_equal_bits, weights


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_same_seed_gives_equal_bits_with_one_or_two_table_threads(
    depth: int, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"train.pipeline_depth={depth}", "train.max_steps=150"]
    first = weights(job.train(capsys, *words, "store.threads=1")["checkpoint"])
    for threads in (1, 2):
        again = weights(job.train(capsys, *words, f"store.threads={threads}")["checkpoint"])
        assert_equal_bits(first, again)


def test_depths_train_different_bits_and_another_seed_too(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train.max_steps=60"]
    base = weights(job.train(capsys, *words)["checkpoint"])
    for change in ("train.pipeline_depth=1", "train.seed=1"):
        other = weights(job.train(capsys, *words, change)["checkpoint"])
        assert any(array.tobytes() != other[name].tobytes() for name, array in base.items() if name in other)


@pytest.mark.parametrize("depth", [0, 2])
def test_two_hundred_steps_and_resume_to_four_hundred_are_four_hundred_steps(
    depth: int, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    depth_word = f"train.pipeline_depth={depth}"
    straight = job.train(
        capsys, depth_word, "train.max_steps=400", "output.name=straight", "output.checkpoint_every=200"
    )
    job.train(capsys, depth_word, "train.max_steps=200", "output.name=stopped")
    resumed = job.train(capsys, depth_word, "train.max_steps=400", "output.name=stopped", "--resume")
    assert resumed["auc"] == straight["auc"]
    assert_equal_bits(weights(straight["checkpoint"]), weights(resumed["checkpoint"]))


def test_resume_in_the_middle_of_a_work_unit_trains_each_example_once(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = job.train(capsys, "train.epochs=1", "train.max_steps=77", "output.name=run")
    resumed = job.train(capsys, "train.epochs=1", "output.name=run", "--resume")
    whole = job.train(capsys, "train.epochs=1")
    assert stopped["examples"] + resumed["examples"] == whole["examples"]
    counts = {name: array for name, array in weights(resumed["checkpoint"]).items() if name.endswith("/count")}
    expected = weights(whole["checkpoint"])
    assert sum(int(array.sum()) for name, array in counts.items() if name.startswith("user/")) == whole["examples"]
    assert all((array == expected[name]).all() for name, array in counts.items())


def test_resume_with_another_batch_size_or_seed_is_refused(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.train(capsys, "train.max_steps=20", "output.name=run")
    for word in ("train.batch_size=32", "train.shuffle=false"):
        message = job.fail(capsys, "train", str(job.path), "--json", "--resume", "output.name=run", word)
        assert word.partition("=")[0].partition(".")[2] in message
    message = job.fail(
        capsys, "train", str(job.path), "--json", "--resume", "output.name=run", "features.features.0.id=text"
    )
    assert "feature 'user'" in message


def test_early_stop_goes_back_to_the_best_checkpoint(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    facts = job.train(capsys, "train.epochs=30", "optimizer.rows.lr=0.5", "train.early_stop={metric: auc, patience: 2}")
    assert facts["examples"] < 30 * 24_000 * 0.8
    assert evaluate_source(Path(facts["checkpoint"]), [])["auc"] == pytest.approx(facts["auc"], abs=1e-12)
