"""Who may talk to a shard: loopback only, TLS, mutual TLS, bearer token, names without tricks."""

import grpc
import pytest
from certificates import Authority
from pydantic import ValidationError
from running_shards import running_shards

from embershard.ps_server.client import connect
from embershard.ps_server.cluster_spec import ClusterSpec
from embershard.ps_server.errors import AccessDeniedError, StoreUnavailableError
from embershard.ps_server.security import ClientSecurity, ServerSecurity
from embershard.ps_server.server import ShardOptions
from embershard.ps_server.service_name import SERVICE
from embershard.ps_server.shard_link import Patience

HASTY = Patience(call_seconds=2, attempt_seconds=1, connect_seconds=1.5)
TOKEN = "a-long-enough-token"


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ours"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("theirs"), "theirs")


def serve(**security):
    spec = ClusterSpec(name="secure", shards=("127.0.0.1:0",), tablet_bits=1)
    return running_shards(spec, security=ServerSecurity(**security))


def try_connect(servers, **security):
    with connect(servers[0].address, patience=HASTY, security=ClientSecurity(**security)) as store:
        return store.tables()


def test_token_is_asked_of_every_call():
    with serve(token=TOKEN) as servers:
        assert try_connect(servers, token=TOKEN) == ()
        for wrong in (None, "another-long-token", TOKEN + "x"):
            with pytest.raises(
                AccessDeniedError, match=rf"server at {servers[0].address}: expected the cluster's bearer token"
            ):
                try_connect(servers, token=wrong)
        with grpc.insecure_channel(servers[0].address) as channel:
            for method in (f"/{SERVICE}/Status", "/grpc.health.v1.Health/Check"):
                with pytest.raises(grpc.RpcError) as caught:
                    channel.unary_unary(method)(b"", timeout=5)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert try_connect(servers, token=TOKEN) == ()


def test_tls_server_is_checked_by_the_client(authority, stranger):
    certificate, key = authority.issue("server")
    with serve(tls_certificate=certificate, tls_key=key, token=TOKEN) as servers:
        assert try_connect(servers, tls_ca=authority.file, token=TOKEN) == ()
        with pytest.raises(AccessDeniedError, match=rf"{servers[0].address}: expected a server whose certificate"):
            try_connect(servers, tls_ca=stranger.file, token=TOKEN)
        with pytest.raises(AccessDeniedError, match=rf"{servers[0].address}: expected a certificate for this host"):
            try_connect(servers, tls_ca=authority.file, tls_server_name="shard.example", token=TOKEN)
        with pytest.raises(StoreUnavailableError, match=rf"{servers[0].address} did not .* a server that expects TLS"):
            try_connect(servers, token=TOKEN)
        with pytest.raises(AccessDeniedError, match="bearer token"):
            try_connect(servers, tls_ca=authority.file, token="not-the-token")


def test_mutual_tls_refuses_clients_of_another_authority(authority, stranger):
    certificate, key = authority.issue("server")
    with serve(tls_certificate=certificate, tls_key=key, tls_client_ca=authority.file) as servers:
        mine, theirs = authority.issue("worker"), stranger.issue("worker")
        assert try_connect(servers, tls_ca=authority.file, tls_certificate=mine[0], tls_key=mine[1]) == ()
        with pytest.raises(StoreUnavailableError):
            try_connect(servers, tls_ca=authority.file, tls_certificate=theirs[0], tls_key=theirs[1])
        with pytest.raises(StoreUnavailableError):
            try_connect(servers, tls_ca=authority.file)


@pytest.mark.parametrize("address", ["0.0.0.0:7700", "[::]:7700", "10.1.2.3:7700", "shard.example:7700"])
def test_open_address_needs_tls_and_token_or_the_word_insecure(address, authority):
    spec = ClusterSpec(name="open", shards=(address,))
    certificate, key = authority.issue("server")
    half = ServerSecurity(tls_certificate=certificate, tls_key=key)
    for security, missing in (
        (ServerSecurity(), "no TLS"),
        (half, "no token"),
        (ServerSecurity(token=TOKEN), "no TLS"),
    ):
        with pytest.raises(ValidationError, match=f"which other machines can reach, got {missing}"):
            ShardOptions(spec=spec, security=security)
    ShardOptions(spec=spec, security=ServerSecurity(insecure=True))
    ShardOptions(spec=spec, security=ServerSecurity(tls_certificate=certificate, tls_key=key, token=TOKEN))


def test_client_sends_nothing_in_the_clear_to_another_machine():
    with pytest.raises(ValueError, match=r"expected TLS to reach 10\.1\.2\.3:7700"):
        connect("10.1.2.3:7700", security=ClientSecurity(token=TOKEN), patience=HASTY)


def test_server_without_tls_is_told_apart_from_one_that_is_down(authority):
    with (
        serve(token=TOKEN) as servers,
        pytest.raises(AccessDeniedError, match=rf"{servers[0].address}: expected a server that speaks TLS"),
    ):
        try_connect(servers, tls_ca=authority.file, token=TOKEN)


def test_files_that_are_not_what_they_should_be_are_named(authority, tmp_path):
    certificate, key = authority.issue("mixed")
    other_key = authority.issue("other")[1]
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("no certificate", encoding="ascii")
    channel = "127.0.0.1:1", []
    with pytest.raises(FileNotFoundError, match=r"expected a file as tls_ca, got none: .*absent\.pem") as missing:
        ClientSecurity(tls_ca=tmp_path / "absent.pem").channel(*channel)
    assert missing.value.__notes__ == ["needed to reach 127.0.0.1:1"]
    with pytest.raises(ValueError, match=r"expected PEM certificates as tls_ca, got file .*garbage\.pem"):
        ClientSecurity(tls_ca=garbage).channel(*channel)
    mixed = {"tls_certificate": certificate, "tls_key": other_key}
    with pytest.raises(ValueError, match=r"and its key, .*got files .*ours-mixed\.pem and .*ours-other\.key"):
        ClientSecurity(tls_ca=authority.file, **mixed).channel(*channel)
    with pytest.raises(ValueError, match=r"and its key, .*got files .*ours-mixed\.pem and .*ours-other\.key"):
        ServerSecurity(**mixed).credentials()
    with pytest.raises(ValueError, match=r"expected PEM certificates as tls_client_ca, got file .*garbage\.pem"):
        ServerSecurity(tls_certificate=certificate, tls_key=key, tls_client_ca=garbage).credentials()


def test_half_a_key_pair_is_refused(authority):
    with pytest.raises(ValidationError, match="tls_certificate and tls_key together"):
        ServerSecurity(tls_certificate=authority.file)
    with pytest.raises(ValidationError, match="tls_certificate and tls_key together"):
        ClientSecurity(tls_ca=authority.file, tls_key=authority.file)


def test_secrets_are_not_printed():
    assert TOKEN not in repr(ServerSecurity(token=TOKEN))
    assert TOKEN not in repr(ClientSecurity(token=TOKEN))
