"""Who may talk to a shard, and over what: TLS, bearer token, loopback only."""

from __future__ import annotations

import errno
import hmac
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
from pydantic import BaseModel, ConfigDict, Field, model_validator

from .cluster_spec import is_local

Handler = Any  # grpc.RpcMethodHandler; its stubs are generic, its classes are not
TOKEN_KEY = "authorization"
TOKEN_VARIABLE = "EMBERSHARD_TOKEN"
"""Environment variable with the bearer token of the cluster, for shards and clients."""


def token_of_environment() -> str | None:
    """The token in $EMBERSHARD_TOKEN, None where it is not set or empty."""
    return os.environ.get(TOKEN_VARIABLE) or None


class ServerSecurity(BaseModel):
    """What a server asks of its clients.

    tls_certificate, tls_key: PEM files of the server.
    tls_client_ca: PEM file; clients must present a certificate that it signed (mutual TLS).
    token:    clients must send it as `authorization: Bearer …`.
    insecure: listen on an address that others can reach without TLS and token.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    token: str | None = Field(default=None, min_length=8, repr=False)
    insecure: bool = False

    @model_validator(mode="after")
    def _check(self) -> ServerSecurity:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("expected tls_certificate and tls_key together, got one of them")
        if self.tls_client_ca is not None and self.tls_certificate is None:
            raise ValueError("expected tls_certificate with tls_client_ca, got none")
        return self

    def check_address(self, address: str) -> None:
        """Raises: ValueError if the address is open to others and neither secured nor declared insecure."""
        if is_local(address) or self.insecure or (self.tls_certificate is not None and self.token is not None):
            return
        raise ValueError(
            f"expected TLS and a token to listen on {address}, which other machines can reach, got "
            f"{'no TLS' if self.tls_certificate is None else 'no token'}; give both, or say insecure"
        )

    def credentials(self) -> grpc.ServerCredentials | None:
        """TLS of the server, None without. Raises: FileNotFoundError, ValueError naming the file that is at fault."""
        if self.tls_certificate is None or self.tls_key is None:
            return None
        pair = _key_and_certificate(self.tls_key, self.tls_certificate)
        if self.tls_client_ca is None:
            return grpc.ssl_server_credentials([pair])
        authority = _authority("tls_client_ca", self.tls_client_ca)
        return grpc.ssl_server_credentials([pair], authority, require_client_auth=True)


class ClientSecurity(BaseModel):
    """What a client brings.

    tls_ca:   PEM file of who signs the servers; turns TLS on.
    tls_certificate, tls_key: PEM files of the client (mutual TLS).
    tls_server_name: name in the server's certificate, if it is not the host it is reached by.
    token:    sent with every call.
    insecure: send a token, or rows, to another machine without TLS.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tls_ca: Path | None = None
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    tls_server_name: str | None = None
    token: str | None = Field(default=None, repr=False)
    insecure: bool = False

    @model_validator(mode="after")
    def _check(self) -> ClientSecurity:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError("expected tls_certificate and tls_key together, got one of them")
        if self.tls_certificate is not None and self.tls_ca is None:
            raise ValueError("expected tls_ca with tls_certificate, got none")
        return self

    def channel(self, address: str, options: list[tuple[str, int | str]]) -> grpc.Channel:
        """A channel to the address.

        Raises: ValueError for another machine without TLS that is not said insecure; FileNotFoundError, ValueError
        naming the PEM file that is at fault."""
        target = address if address.startswith("unix:") else f"dns:///{address}"
        if self.tls_ca is not None:
            credentials = self._credentials(self.tls_ca, address)
            if self.tls_server_name is not None:
                options = [*options, ("grpc.ssl_target_name_override", self.tls_server_name)]
            return grpc.secure_channel(target, credentials, options)
        if not is_local(address) and not self.insecure:
            raise ValueError(
                f"expected TLS to reach {address} on another machine, got none; give tls_ca, or say insecure"
            )
        return grpc.insecure_channel(target, options)

    def _credentials(self, authority: Path, address: str) -> grpc.ChannelCredentials:
        try:
            pair: tuple[bytes | None, bytes | None] = (None, None)
            if self.tls_key is not None and self.tls_certificate is not None:
                pair = _key_and_certificate(self.tls_key, self.tls_certificate)
            return grpc.ssl_channel_credentials(_authority("tls_ca", authority), *pair)
        except (OSError, ValueError) as error:
            # add_note is Python 3.11, the attribute works everywhere.
            error.__dict__["__notes__"] = [f"needed to reach {address}"]
            raise

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What each call carries."""
        return () if self.token is None else ((TOKEN_KEY, f"Bearer {self.token}"),)


_TLS_FAILURES = {
    "CERTIFICATE_VERIFY_FAILED": "expected a server whose certificate tls_ca signed, got one that it did not",
    "Hostname Verification Check failed": "expected a certificate for this host (or tls_server_name), got another's",
    "WRONG_VERSION_NUMBER": "expected a server that speaks TLS, got one that does not; leave tls_ca out to reach it",
}


def tls_failure(details: str) -> str | None:
    """Why a TLS handshake will fail every time, in words, from gRPC's; None where trying again may help."""
    return next((words for sign, words in _TLS_FAILURES.items() if sign in details), None)


def _authority(field: str, path: Path) -> bytes:
    """PEM bytes of a certificate authority. gRPC itself would only say that no handshaker could be made."""
    data = _read(field, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=data.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise ValueError(f"expected PEM certificates as {field}, got file {path}: {error}") from None
    return data


def _key_and_certificate(key: Path, certificate: Path) -> tuple[bytes, bytes]:
    """PEM bytes of a private key and the certificate chain that goes with it."""
    pair = _read("tls_key", key), _read("tls_certificate", certificate)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise ValueError(
            f"expected a PEM certificate as tls_certificate and its key, without password, as tls_key, got files "
            f"{certificate} and {key}: {error}"
        ) from None
    return pair


def _no_password() -> str:
    raise ValueError("the key has a password")


def _read(field: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"expected a file as {field}, got none", str(path)) from None


class TokenCheck(grpc.ServerInterceptor):
    """Refuses calls without the bearer token, of every service on the server."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()
        self._refuse: Handler = grpc.unary_unary_rpc_method_handler(_refuse)

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Handler],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """The method's handler, or one that refuses."""
        for key, value in handler_call_details.invocation_metadata:
            if key == TOKEN_KEY:
                sent = value if isinstance(value, bytes) else value.encode()
                if hmac.compare_digest(sent, self._expected):
                    return continuation(handler_call_details)
        return self._refuse


def _refuse(_request: bytes, context: grpc.ServicerContext) -> bytes:
    context.abort(grpc.StatusCode.UNAUTHENTICATED, "expected the cluster's bearer token, got none or another")
    raise AssertionError  # abort raises
