"""Certificates for tests, made on the spot."""

from dataclasses import dataclass
from pathlib import Path

import trustme


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate chain and its private key, PEM."""

    certificate: bytes
    key: bytes


class Authority:
    """Makes certificates that trust each other."""

    def __init__(self) -> None:
        self._authority = trustme.CA()

    @property
    def certificate(self) -> bytes:
        """What to trust, PEM."""
        return self._authority.cert_pem.bytes()

    def issue(self, *names: str, common_name: str | None = None) -> KeyPair:
        """A certificate for host names and addresses."""
        issued = self._authority.issue_cert(*names, common_name=common_name)
        chain = b"".join(pem.bytes() for pem in issued.cert_chain_pems)
        return KeyPair(chain, issued.private_key_pem.bytes())


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How an etcd encrypts what clients see.

    Attributes:
        authority: Made the certificate, and those of clients.
        names: What the certificate is for.
        client_certificates: Whether clients must show one.

    """

    authority: Authority
    names: tuple[str, ...] = ("127.0.0.1", "localhost")
    client_certificates: bool = False

    def arguments(self, folder: Path) -> list[str]:
        """Writes the files into `folder`, and returns etcd's flags that name them."""
        pair = self.authority.issue(*self.names)
        files = {"cert": pair.certificate, "key": pair.key, "ca": self.authority.certificate}
        for name, pem in files.items():
            (folder / f"{name}.pem").write_bytes(pem)
        return [
            f"--cert-file={folder / 'cert.pem'}",
            f"--key-file={folder / 'key.pem'}",
            *(
                ("--client-cert-auth", f"--trusted-ca-file={folder / 'ca.pem'}")
                if self.client_certificates
                else ()
            ),
        ]
