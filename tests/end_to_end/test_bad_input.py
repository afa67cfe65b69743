"""Bad input ends in one clear error, soon, and nothing half-written stays behind."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_disk import small_disk

from embershard.embedding.checkpoint import open_checkpoint

from .job import Job, clicks

Damage = Callable[[Job], tuple[list[str], list[str]]]


def unknown_config_key(job: Job) -> tuple[list[str], list[str]]:
    return ["train.epoch=3"], ["$.train.epoch: unknown key; did you mean 'epochs'?"]


def value_out_of_range(job: Job) -> tuple[list[str], list[str]]:
    return ["train.epochs=0"], ["$.train.epochs: expected greater than or equal to 1, got 0"]


def device_that_is_not_there(job: Job) -> tuple[list[str], list[str]]:
    return ["train.device=cuda:99", "store.kind=cluster"], ["got 'cuda:99'"]


def device_of_no_kind(job: Job) -> tuple[list[str], list[str]]:
    return ["train.device=gpu"], ["expected a device", "got 'gpu'"]


def device_without_values(job: Job) -> tuple[list[str], list[str]]:
    return ["train.device=meta"], ["expected a device", "got 'meta'"]


def batch_of_more_rows_than_a_file_has(job: Job) -> tuple[list[str], list[str]]:
    return ["train.batch_size=99999999999999999999"], ["$.train.batch_size: expected less than 2147483648, got 9999"]


def more_shards_than_tablets(job: Job) -> tuple[list[str], list[str]]:
    words = ["store.kind=cluster", "store.shards=3", "store.tablet_bits=1"]
    return words, ["$.store: expected at most 2 shards (2^tablet_bits), got 3"]


def more_threads_than_any_machine_has(job: Job) -> tuple[list[str], list[str]]:
    return ["train.threads=100000"], ["$.train.threads: expected less than or equal to 1024, got 100000"]


def missing_column(job: Job) -> tuple[list[str], list[str]]:
    return ["features.features.0.column=usr"], ["usr", "clicks.parquet", "user"]


def float_id_column(job: Job) -> tuple[list[str], list[str]]:
    return ["features.features.0.column=price"], ["price", "float"]


def label_outside_zero_and_one(job: Job) -> tuple[list[str], list[str]]:
    features = "[{name: item, kind: categorical, id: text}]"
    return ["features.label=user", f"features.features={features}"], ["user", "[0, 1]"]


def empty_file_list(job: Job) -> tuple[list[str], list[str]]:
    return [f"data.path={job.folder}/none-*.parquet"], ["none-*.parquet"]


def corrupt_parquet(job: Job) -> tuple[list[str], list[str]]:
    path = job.folder / "clicks.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3 : len(data) // 3 + 4000] = bytes(4000)
    path.write_bytes(bytes(data))
    return [], ["clicks.parquet"]


def parquet_page_against_its_checksum(job: Job) -> tuple[list[str], list[str]]:
    path = job.folder / "clicks.parquet"
    pq.write_table(clicks(), path, compression="none", use_dictionary=False, write_page_checksum=True)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1  # a bit of a number: it decodes, to another one
    path.write_bytes(bytes(data))
    return [], ["clicks.parquet", "CRC"]


def truncated_parquet(job: Job) -> tuple[list[str], list[str]]:
    path = job.folder / "clicks.parquet"
    path.write_bytes(path.read_bytes()[:-100])
    return [], ["clicks.parquet"]


def unreadable_csv_cell(job: Job) -> tuple[list[str], list[str]]:
    path = job.folder / "clicks.csv"
    path.write_text("click,user,item,price\n1,5,a,2.0\n0,6,b,1.0\n1,x7,c,1.0\n")
    features = "[{name: user, kind: categorical}, {name: price, kind: numeric}]"
    return [f"data.path={path}", f"features.features={features}"], ["clicks.csv", "row 3", "'user'", "x7"]


def quote_never_closed(job: Job) -> tuple[list[str], list[str]]:
    path = job.folder / "clicks.csv"
    path.write_text('click,user\n1,5\n0,"6\n1,7\n')
    return [f"data.path={path}", "features.features=[{name: user, kind: categorical}]"], ["closing quote", "row 2"]


def misspelt_json_field(job: Job) -> tuple[list[str], list[str]]:
    path = job.folder / "clicks.jsonl"
    path.write_text('{"click": 1, "usr": 5}\n{"click": 0, "usr": 6}\n')
    return [f"data.path={path}", "features.features=[{name: user, kind: categorical}]"], ["'user'", "'usr'"]


def bad_label_among_many(job: Job) -> tuple[list[str], list[str]]:
    table = clicks()
    label = table.column("click").to_numpy().copy()
    label[17_000] = 3
    pq.write_table(table.set_column(0, "click", pa.array(label)), job.folder / "clicks.parquet")
    return ["data.evaluate=null"], ["[0, 1]", "got 3", "row 17001 of file"]


def all_rows_evaluate(job: Job) -> tuple[list[str], list[str]]:
    return ["data.evaluate={column: user, cut: -1}"], ["rows to train on", "clicks.parquet"]


def no_row_evaluates_after_the_cut(job: Job) -> tuple[list[str], list[str]]:
    expected = [f"{job.path}: $.data.evaluate: expected rows to evaluate, got none", "'user' at or after 300"]
    return ["data.evaluate={column: user, cut: 300}"], expected


def no_row_of_the_share_evaluates(job: Job) -> tuple[list[str], list[str]]:
    pq.write_table(clicks(20), job.folder / "clicks.parquet")
    return ["data.evaluate={share: 0.0001}"], ["$.data.evaluate: expected rows to evaluate", "the share 0.0001"]


def evaluation_file_without_a_column(job: Job) -> tuple[list[str], list[str]]:
    pq.write_table(clicks(20).drop_columns(["item"]), job.folder / "test.parquet")
    return [f"data.evaluate={{path: {job.folder}/test.parquet}}"], ["column 'item'", "test.parquet"]


def only_numbers_for_factors(job: Job) -> tuple[list[str], list[str]]:
    features = "[{name: price, kind: numeric}]"
    expected = [f"{job.path}: $.features: expected at least one pooled feature for model 'fm'", "'lr' takes them"]
    return [f"features.features={features}", "model={kind: fm}"], expected


def values_kept_apart_for_a_linear_model(job: Job) -> tuple[list[str], list[str]]:
    features = "[{name: tags, kind: sequence}, {name: user, kind: categorical}]"
    expected = ["$.features: expected pooling sum, mean, sqrtn or max of every feature", "'lr', got none of ['tags']"]
    return [f"features.features={features}", "model={kind: lr}"], expected


def two_labels_for_one_logit(job: Job) -> tuple[list[str], list[str]]:
    expected = f"{job.path}: $.features.label: expected one label column, got ['click', 'bought']"
    return ["features.label=[click, bought]"], [expected, "'deepfm'"]


def no_label(job: Job) -> tuple[list[str], list[str]]:
    return ["features.label=null"], [f"{job.path}: $.features.label: expected a label column"]


def label_that_is_a_feature_too(job: Job) -> tuple[list[str], list[str]]:
    features = "[{name: user, kind: categorical}, {name: seen, kind: categorical, column: click}]"
    return [f"features.features={features}"], [f"{job.path}: $.features: feature 'seen'", "label column 'click'"]


def unreadable_number_to_learn_from(job: Job) -> tuple[list[str], list[str]]:
    path = job.folder / "clicks.parquet"
    table = clicks(9000)
    price = [str(price) for price in table.column("price").to_pylist()]
    price[7000] = "cheap"
    pq.write_table(table.set_column(4, "price", pa.array(price)), path, row_group_size=4000)
    standardised = "[{name: user, kind: categorical}, {name: price, kind: numeric, transform: standardise}]"
    return [f"features.features={standardised}", "data.evaluate=null"], [
        "'price'",
        "'cheap'",
        f"row 7001 of file '{path}'",
    ]


def unknown_file_system(job: Job) -> tuple[list[str], list[str]]:
    return ["data.path=nowhere://bucket/clicks"], ["file system", "nowhere://bucket/clicks"]


def unknown_time_zone(job: Job) -> tuple[list[str], list[str]]:
    hour = "[{name: user, kind: categorical, time: {part: hour, unit: s, time_zone: Mars/Base}}]"
    return [f"features.features={hour}"], ["$.features.features[0].time.time_zone", "Mars/Base"]


@pytest.mark.parametrize(
    "damage",
    [
        quote_never_closed,
        misspelt_json_field,
        all_rows_evaluate,
        no_row_evaluates_after_the_cut,
        no_row_of_the_share_evaluates,
        evaluation_file_without_a_column,
        only_numbers_for_factors,
        values_kept_apart_for_a_linear_model,
        two_labels_for_one_logit,
        no_label,
        label_that_is_a_feature_too,
        unreadable_number_to_learn_from,
        unknown_file_system,
        unknown_time_zone,
        unknown_config_key,
        value_out_of_range,
        device_that_is_not_there,
        device_of_no_kind,
        device_without_values,
        batch_of_more_rows_than_a_file_has,
        more_shards_than_tablets,
        more_threads_than_any_machine_has,
        missing_column,
        float_id_column,
        label_outside_zero_and_one,
        empty_file_list,
        corrupt_parquet,
        parquet_page_against_its_checksum,
        truncated_parquet,
        unreadable_csv_cell,
    ],
    ids=lambda damage: damage.__name__,
)
def test_bad_input_is_one_clear_error_and_leaves_nothing(
    damage: Damage, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = damage(job)
    before = sorted(job.folder.rglob("*"))
    message = job.fail(capsys, "train", str(job.path), "--json", *words)
    for part in expected:
        assert part in message
    assert sorted(job.folder.rglob("*")) == before


@pytest.mark.process
def test_shards_that_bad_input_stops_leave_nothing(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = [], tempfile.mkdtemp

    def recorded(*words: Any, **options: Any) -> str:
        made.append(make(*words, **options))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", recorded)
    words, expected = float_id_column(job)
    before = sorted(job.folder.rglob("*"))
    message = job.fail(capsys, "train", str(job.path), "--json", "store={kind: cluster, shards: 2}", *words)
    assert all(part in message for part in expected)
    assert sorted(job.folder.rglob("*")) == before
    assert made
    assert not any(Path(path).exists() for path in made)


def test_dim_other_than_the_checkpoints_is_refused(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.train(capsys, "train.max_steps=20", "output.name=run")
    before = sorted(job.folder.rglob("*"))
    message = job.fail(capsys, "train", str(job.path), "--resume", "output.name=run", "model.dim=8")
    assert "dim" in message
    assert "user" in message
    assert sorted(job.folder.rglob("*")) == before


def test_checkpoint_without_a_manifest_does_not_exist(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = Path(job.train(capsys, "train.max_steps=20", "output.name=run")["checkpoint"])
    (checkpoint / "manifest.json").unlink()
    for command in (["evaluate"], ["predict", "clicks.parquet"], ["export", "--to", "x.parquet"]):
        message = job.fail(capsys, command[0], str(checkpoint), *command[1:])
        assert "manifest" in message
    message = job.fail(capsys, "train", str(job.path), "--resume", "output.name=run")
    assert "expected a complete checkpoint in" in message
    for entry in sorted(checkpoint.rglob("*"), reverse=True):
        entry.rmdir() if entry.is_dir() else entry.unlink()
    checkpoint.rmdir()
    message = job.fail(capsys, "predict", str(checkpoint.parent.parent), "clicks.parquet")
    assert message.endswith("run/checkpoints, got none")


def test_missing_files_are_named(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing.yaml" in job.fail(capsys, "train", str(job.folder / "nothing.yaml"))
    assert "no-such-run" in job.fail(capsys, "evaluate", str(job.folder / "no-such-run"))
    assert "expected a run, got none in" in job.fail(capsys, "train", str(job.path), "--resume")


def test_bad_cell_in_predict_leaves_no_file(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = job.train(capsys, "train.max_steps=20")["checkpoint"]
    table = clicks(500)
    floats = table.set_column(table.schema.get_field_index("user"), "user", pa.array([0.5] * 500))
    pq.write_table(floats, job.folder / "floats.parquet")
    to = job.folder / "predicted.parquet"
    message = job.fail(capsys, "predict", checkpoint, str(job.folder / "floats.parquet"), "--to", str(to))
    assert "user" in message
    assert not [path for path in job.folder.iterdir() if "predicted" in path.name]


def test_commands_do_not_write_over_what_they_read(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint, log = job.train(capsys, "train.max_steps=20")["checkpoint"], job.folder / "clicks.parquet"
    before = log.read_bytes()
    (job.folder / "link.parquet").symlink_to(log)
    for to in (log, job.folder / "link.parquet"):
        message = job.fail(capsys, "predict", checkpoint, str(job.folder / "*.parquet"), "--to", str(to))
        assert "expected --to with another file than those that are read, got " in message
    assert "expected an export or no file" in job.fail(
        capsys, "export", checkpoint, "--table", "user", "--to", str(log)
    )
    assert "expected an export or an empty directory" in job.fail(capsys, "export", checkpoint, "--to", checkpoint)
    assert log.read_bytes() == before
    assert open_checkpoint(checkpoint).manifest.step == 20


LIMITED = """
import resource, sys
from embershard.cli.main import run
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
sys.exit(run(sys.argv[2:]))
"""


@pytest.mark.process
def test_file_that_cannot_grow_while_saving_keeps_the_older_checkpoint(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    first = Path(job.train(capsys, "train.max_steps=20", "output.name=run")["checkpoint"])
    before = sorted(path for path in first.parent.rglob("*"))
    words = ["train", str(job.path), "--json", "--resume", "output.name=run", "train.max_steps=40"]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, "10000", *words], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "could not save a checkpoint" in errors[0]
    assert "Traceback" not in done.stderr
    assert sorted(path for path in first.parent.rglob("*")) == before
    resumed = job.train(capsys, "train.max_steps=40", "output.name=run", "--resume")
    straight = job.train(capsys, "train.max_steps=40")
    assert resumed["auc"] == straight["auc"]


@pytest.mark.process
@pytest.mark.parametrize(
    ("most", "command", "named"),
    [
        (100, "train JOB --json output.folder=FOLDER/new", "new/run-0001/config.yaml"),
        (4000, "predict RUN FOLDER/clicks.parquet --to FOLDER/predicted.csv", "predicted.csv"),
        (100, "features importance RUN --save FOLDER/importance.json", "importance.json"),
        (100, "features profile JOB --json", "profile/profile.parquet"),
    ],
)
def test_a_file_that_cannot_grow_is_named_and_nothing_of_it_stays(
    job: Job, capsys: pytest.CaptureFixture[str], most: int, command: str, named: str
) -> None:
    run_folder = Path(job.train(capsys, "train.max_steps=5")["report"]).parent
    before = sorted(path for path in job.folder.rglob("*") if path.is_file())
    places = {"JOB": job.path, "RUN": run_folder, "FOLDER": job.folder}
    for word, place in places.items():
        command = command.replace(word, str(place))
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(most), *command.split()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert sorted(path for path in job.folder.rglob("*") if path.is_file()) == before
    assert done.returncode == 1
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "File too large" in error
    assert error.endswith(named)
    assert not (job.folder / "new" / "run-0001").exists()


def test_a_model_too_large_for_memory_is_one_clear_error_and_leaves_nothing(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    model = "model={kind: deepfm, hidden: [65536, 16777216]}"
    message = job.fail(capsys, "train", str(job.path), model, code=1)
    assert message.startswith("error: expected memory for ")
    assert "a smaller model (model.hidden, model.dim)" in message
    message = job.fail(capsys, "train", str(job.path), model.replace("65536", "99999999999999999999"))
    assert "$.model.hidden[0]: expected less than or equal to 16777216, got 99999999999999999999" in message
    assert not (job.path.parent / "runs").exists()


@pytest.mark.process
def test_full_disk_while_saving_is_one_clear_error(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    with small_disk(job.folder / "disk", "96k") as disk:
        message = job.fail(
            capsys, "train", str(job.path), "--json", "train.max_steps=40", f"output.folder={disk}", code=1
        )
        assert "No space left on device" in message
        assert not list(disk.rglob("step-*"))


def test_a_bad_label_in_the_middle_of_training_is_named_by_its_row_in_the_file(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    words, expected = bad_label_among_many(job)
    message = job.fail(capsys, "train", str(job.path), "--json", *words)
    for part in expected:
        assert part in message
