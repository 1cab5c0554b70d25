"""Where a plane keeps its state: what can be told of that, with units and bounds."""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr

from kvplane_services.errors import InvalidRequest
from kvplane_services.settings_sections import Section
from kvplane_services.store_url import StoreUrl, check_prefix


def _store_url(text: str) -> str:
    try:
        StoreUrl.parse(text)
    except InvalidRequest as error:
        raise ValueError(error.message) from error
    return text


class StoreSection(Section):
    """Where the plane keeps its state. All replicas of a plane name the same store."""

    url: Annotated[str, AfterValidator(_store_url)] = Field(
        default="memory",
        description="memory for this process's own, which is gone with it; or etcd 3.4 or later, "
        "for planes of several replicas: etcd://HOST:PORT,HOST:PORT, or etcd3://HOST:PORT through "
        "the package etcd3. Of the settings below prefix, user and the tls ones can follow as "
        "?name=value&name=value.",
    )
    prefix: Annotated[str, AfterValidator(check_prefix)] = Field(
        default="/kvplane/v1/",
        description="What all keys in etcd begin with; planes that share an etcd take different "
        "ones.",
    )
    user: str = Field(
        default="", description="User that may read and write everything under the prefix."
    )
    password: SecretStr = Field(
        default=SecretStr(""), description="Password of the user: KVPLANE_STORE__PASSWORD."
    )
    tls_ca: Path | None = Field(
        default=None,
        description="PEM file with the authorities that sign etcd's certificates; turns encryption "
        "on.",
    )
    tls_cert: Path | None = Field(
        default=None, description="PEM file with this process's certificate, if etcd wants one."
    )
    tls_key: Path | None = Field(
        default=None, description="PEM file with the certificate's private key."
    )
    timeout: float = Field(
        default=6.0,
        gt=0,
        le=60,
        description="Seconds within which a read is answered, with all its attempts.",
    )
    try_timeout: float = Field(
        default=2.0,
        gt=0,
        le=60,
        description="Seconds within which a node of etcd answers, before another one is asked; a "
        "write is tried once.",
    )
    silence: float = Field(
        default=6.0,
        gt=0,
        le=300,
        description="Seconds without a sign of life after which a stream from etcd counts as "
        "broken.",
    )
    start_timeout: float = Field(
        default=20.0,
        ge=0,
        le=3600,
        description="Seconds that a process waits for etcd when it starts, before it ends with an "
        "error. Later it waits for as long as it takes.",
    )
