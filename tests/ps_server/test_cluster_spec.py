"""Cluster spec: flags, files and the environment say the same; what is wrong is named with its place."""

import json

import pytest

from embershard.feature_map.errors import ConfigError
from embershard.ps_server.cluster_spec import ClusterSpec, check_address, is_local, load_cluster

DOCUMENT = {
    "cluster": {"name": "ads", "shards": ["127.0.0.1:7700", "unix:/run/shard-1.sock"], "tablet_bits": 4},
    "task": {"type": "shard", "index": 1},
}


def test_file_and_environment_agree(tmp_path, monkeypatch):
    monkeypatch.setenv("EMBERSHARD_CLUSTER", json.dumps(DOCUMENT))
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "cluster:\n  name: ads\n  shards: ['127.0.0.1:7700', 'unix:/run/shard-1.sock']\n  tablet_bits: 4\n"
        "task: {type: shard, index: 1}\n"
    )
    spec, task = load_cluster()
    assert (spec, task) == load_cluster(path)
    assert spec == ClusterSpec(**DOCUMENT["cluster"])
    assert (task.type, task.index) == ("shard", 1)
    assert spec.first_map().owners.tolist() == [0] * 8 + [1] * 8


def test_neither_file_nor_environment(monkeypatch):
    monkeypatch.delenv("EMBERSHARD_CLUSTER", raising=False)
    with pytest.raises(ConfigError, match=r"expected a cluster file or \$EMBERSHARD_CLUSTER, got neither"):
        load_cluster()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda d: d["cluster"].update(shards=[]), "cluster.shards"),
        (lambda d: d["cluster"].update(shards=["here:1", "here:1"]), "distinct addresses"),
        (lambda d: d["cluster"].update(shards=["nowhere"]), "host:port or unix:/path"),
        (lambda d: d["cluster"].update(name="../up"), "cluster.name"),
        (lambda d: d["cluster"].update(tablet_bits=0), "at most 1 shards"),
        (lambda d: d["cluster"].update(shard=[]), "shard"),
        (lambda d: d["task"].update(index=2), "shard index below 2, got 2"),
        (lambda d: d["task"].update(type="server"), "task.type"),
    ],
)
def test_mistakes_are_named(change, what, monkeypatch):
    document = json.loads(json.dumps(DOCUMENT))
    change(document)
    monkeypatch.setenv("EMBERSHARD_CLUSTER", json.dumps(document))
    with pytest.raises(ConfigError, match=what):
        load_cluster()


@pytest.mark.parametrize("address", ["a:b", "a:99999", ":7700", "unix:relative", "unix:/" + "x" * 200, "7700"])
def test_addresses_that_are_none(address):
    with pytest.raises(ValueError, match=r"expected (host:port|unix:/path)"):
        check_address(address)


def test_local_addresses():
    assert all(map(is_local, ["unix:/x", "127.0.0.1:1", "127.8.8.8:1", "localhost:1", "[::1]:1"]))
    assert not any(map(is_local, ["0.0.0.0:1", "[::]:1", "192.168.0.1:1", "example.com:1"]))
