"""Who may talk to a shard: loopback only, TLS, mutual TLS, bearer token, names without tricks."""

import datetime
import ipaddress

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
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


class Authority:
    """A certificate authority of this test run."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign(name, self.key.public_key(), x509.Name(_common(name)), is_authority=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(self.certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name):
        """Certificate and key files for loopback."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(name, key.public_key(), self.certificate.subject, is_authority=False)
        files = self.folder / f"{self.name}-{name}.pem", self.folder / f"{self.name}-{name}.key"
        files[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def _sign(self, name, public_key, issuer, *, is_authority):
        now = datetime.datetime.now(datetime.timezone.utc)
        hosts = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name(_common(name)))
            .issuer_name(issuer)
            .public_key(public_key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(hosts), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def _common(name):
    return [x509.NameAttribute(NameOID.COMMON_NAME, name)]


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
        with pytest.raises(StoreUnavailableError, match=servers[0].address):
            try_connect(servers, tls_ca=stranger.file, token=TOKEN)
        with pytest.raises(StoreUnavailableError, match=servers[0].address):
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


def test_half_a_key_pair_is_refused(authority):
    with pytest.raises(ValidationError, match="tls_certificate and tls_key together"):
        ServerSecurity(tls_certificate=authority.file)
    with pytest.raises(ValidationError, match="tls_certificate and tls_key together"):
        ClientSecurity(tls_ca=authority.file, tls_key=authority.file)


def test_secrets_are_not_printed():
    assert TOKEN not in repr(ServerSecurity(token=TOKEN))
    assert TOKEN not in repr(ClientSecurity(token=TOKEN))
