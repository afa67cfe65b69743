"""Runs on a cluster that others started: TLS, token, name, and one clear error for each way it can be wrong."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority

from embershard.cli.main import run
from embershard.feature_map.yaml_file import write_yaml
from embershard.ps_server.cluster_spec import ClusterSpec
from embershard.ps_server.security import ServerSecurity
from embershard.ps_server.server import ShardOptions, ShardServer

from .job import Job, assert_equal_bits, weights

TOKEN = "the-token-of-this-cluster"
HASTY = ("store.connect_seconds=1.5", "train.max_steps=20")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n", encoding="utf-8")
    return path


@contextlib.contextmanager
def shard(**security: object) -> Iterator[str]:
    """Address of a shard on loopback."""
    spec = ClusterSpec(name="others", shards=("127.0.0.1:0",))
    server = ShardServer(ShardOptions(spec=spec, security=ServerSecurity(**security))).start()  # type: ignore[arg-type]
    try:
        yield server.address
    finally:
        server.stop(1.0)


def on(address: str, *words: str) -> list[str]:
    return ["store.kind=cluster", f"store.address={address}", *HASTY, *words]


def test_run_over_mutual_tls_and_token_trains_what_a_local_run_trains(
    job: Job, capsys: pytest.CaptureFixture[str], authority: Authority, token_file: Path
) -> None:
    certificate, key = authority.issue("server")
    mine = authority.issue("worker")
    with shard(tls_certificate=certificate, tls_key=key, tls_client_ca=authority.file, token=TOKEN) as address:
        facts = job.train(
            capsys,
            *on(address, "store.cluster=others", f"store.security.tls_ca={authority.file}"),
            f"store.security.tls_certificate={mine[0]}",
            f"store.security.tls_key={mine[1]}",
            f"store.security.token_file={token_file}",
        )
    local = job.train(capsys, "train.max_steps=20")
    assert_equal_bits(weights(facts["checkpoint"]), weights(local["checkpoint"]))
    for saved in Path(facts["report"]).parent.rglob("*"):
        assert not saved.is_file() or TOKEN.encode() not in saved.read_bytes(), saved


def test_token_may_come_from_the_environment(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERSHARD_TOKEN", TOKEN)
    with shard(token=TOKEN) as address:
        assert job.train(capsys, *on(address))["examples"] > 0


def test_each_wrong_credential_is_one_error_that_names_peer_and_reason(
    job: Job, capsys: pytest.CaptureFixture[str], authority: Authority, stranger: Authority, token_file: Path
) -> None:
    certificate, key = authority.issue("server")
    ours, theirs = f"store.security.tls_ca={authority.file}", f"store.security.tls_ca={stranger.file}"
    token = f"store.security.token_file={token_file}"
    wrong_token = token_file.with_name("wrong")
    wrong_token.write_text("another-long-token", encoding="utf-8")
    no_token = token_file.with_name("empty")
    no_token.touch()
    with shard(tls_certificate=certificate, tls_key=key, token=TOKEN) as address:

        def fail(*words: str, code: int = 1) -> str:
            message = job.fail(capsys, "train", str(job.path), *on(address, *words), code=code)
            assert address in message
            return message

        assert "expected a server whose certificate tls_ca signed, got one that it did not" in fail(theirs, token)
        assert "expected the cluster's bearer token, got none or another" in fail(ours)
        assert "expected the cluster's bearer token" in fail(ours, f"store.security.token_file={wrong_token}")
        assert "a server that expects TLS" in fail(token)
        absent = token_file.with_name("absent")
        for field in ("tls_ca", "token_file"):
            message = fail(ours, token, f"store.security.{field}={absent}", code=2)
            assert str(absent) in message
            assert f"as {field}, got none" in message
        assert "got none or several" in fail(ours, f"store.security.token_file={no_token}", code=2)
        assert "expected cluster 'mine', got cluster 'others'" in fail(ours, token, "store.cluster=mine")
    assert not (job.folder / "runs").exists() or not list((job.folder / "runs").glob("*/checkpoints/step-*"))


def test_cluster_file_names_the_cluster_that_is_expected(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    with shard() as address:
        path = job.folder / "cluster.yaml"
        write_yaml(path, {"cluster": {"name": "mine", "shards": [address]}})
        message = job.fail(capsys, "train", str(job.path), *on(str(path)), code=1)
    assert "expected cluster 'mine', got cluster 'others'" in message


def test_options_that_would_be_ignored_are_refused(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    for words, field in (
        (["store.address=127.0.0.1:1", "store.shards=3"], "shards"),
        (["store.address=127.0.0.1:1", "store.durability=log"], "durability"),
        (["store.security.insecure=true"], "security"),
        (["store.cluster=mine"], "cluster"),
    ):
        message = job.fail(capsys, "train", str(job.path), "store.kind=cluster", *words)
        assert f"expected {field} only with" in message
    message = job.fail(capsys, "train", str(job.path), "store.kind=cluster", f"store.security.token={TOKEN}")
    assert "$.store.security.token: unknown key; did you mean 'token_file'?" in message


@pytest.mark.process
def test_shards_that_the_run_starts_share_the_token_of_the_environment(
    job: Job, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERSHARD_TOKEN", TOKEN)
    assert job.train(capsys, "store.kind=cluster", *HASTY[1:])["examples"] > 0
    folder = str(job.folder / "cluster")
    assert run(["cluster", "up", "--folder", folder, "transport=tcp"]) == 0
    try:
        assert run(["cluster", "status", "--folder", folder]) == 0
        assert "answers" in capsys.readouterr().out
        monkeypatch.setenv("EMBERSHARD_TOKEN", "another-long-token")
        assert "bearer token" in job.fail(capsys, "cluster", "status", "--folder", folder, code=1)
    finally:
        assert run(["cluster", "down", "--folder", folder]) == 0


def test_a_resume_does_not_empty_the_tables_of_another_run(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    only_user = "features.features=[{name: user, kind: categorical, id: int64}]"
    only_item = "features.features=[{name: item, kind: categorical, id: text}]"
    with shard() as address:
        words = on(address, f"output.folder={job.folder / 'mine'}", only_user)
        job.train(capsys, *words)
        others = job.train(capsys, *on(address, f"output.folder={job.folder / 'others'}", only_item))
        message = job.fail(capsys, "train", str(job.path), *words, "--resume", "--json", "train.max_steps=40")
        assert "expected a cluster with the rows of this run alone, got rows in tables ['item'] too" in message
        again = [f"output.folder={job.folder / 'others'}", only_item, "train.max_steps=30"]
        assert "['user']" in job.fail(capsys, "train", str(job.path), *on(address, *again), "--resume", "--json")
    assert others["rows"] > 0


@pytest.mark.parametrize("stop", [20, 60, 100])
def test_a_resume_over_shards_that_were_trained_on_equals_straight(
    job: Job, capsys: pytest.CaptureFixture[str], stop: int
) -> None:
    """Work units of 4,000 rows, 50 steps each, that the run completed after the checkpoint it is resumed at."""
    straight = job.train(capsys, "train.max_steps=130", "output.checkpoint_every=20", "output.keep=100")
    with shard() as address:
        words = on(
            address, "output.name=killed", "output.checkpoint_every=20", "output.keep=100", "train.max_steps=130"
        )
        facts = job.train(capsys, *words)
        for checkpoint in Path(facts["checkpoint"]).parent.iterdir():
            if int(checkpoint.name.split("-")[1]) > stop:
                shutil.rmtree(checkpoint)
        resumed = job.train(capsys, *words, "--resume")
    assert Path(resumed["checkpoint"]).name == Path(straight["checkpoint"]).name
    assert_equal_bits(weights(resumed["checkpoint"]), weights(straight["checkpoint"]))
