"""Vendors' models on a cloud, called with the vendor's own client class for it: Bedrock, Vertex and Azure.

Credentials, region and address are those of the environment, as that class reads them. A name has no address: nothing that
is stored with a session leads the environment's credentials elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, closing, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any, ClassVar

from oakleaf.errors import ModelUnavailable
from oakleaf.models.base import Model
from oakleaf.providers.anthropic import AnthropicModel
from oakleaf.providers.base import NO_KEY, VendorClient, VendorPlugin, is_installed
from oakleaf.providers.connections import VendorConnection
from oakleaf.providers.gemini import GeminiModel
from oakleaf.providers.openai_responses import OpenAIModel

_PLAIN_NAME = re.compile(r"(?!arn:)[\w.:@-]+")
"""No path and no resource of somebody's account: such a name decides who receives the history."""
_GOOGLE_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


class CloudClient(VendorClient):
    """A vendor's model on a cloud. A subclass comes before the vendor's own client."""

    prefix: ClassVar[str]
    packages: ClassVar[tuple[str, ...]] = ()
    """The packages that the client class needs beside the SDK."""
    needs: ClassVar[tuple[tuple[str, ...], ...]] = ()
    """Environment variables, of each group at least one."""
    credentials: ClassVar[str]
    """Where the credentials come from, for the hint of an error."""

    @property
    def _name(self) -> str:
        return f"{self.prefix}:{self.model}"

    def _connection(self) -> VendorConnection:
        if self._client is not None:
            return super()._connection()
        if (problem := self.problem()) is not None:
            raise problem
        key = next(filter(None, map(os.environ.get, self.key_variables)), None)
        return VendorConnection(import_module(self.package), import_module("httpx2"), key or NO_KEY, None)

    def problem(self) -> ModelUnavailable | None:
        if not all(map(is_installed, (self.package, *self.packages))):
            return self._package_missing()
        for names in self.needs if self._client is None else ():
            if not any(map(os.environ.get, names)):
                hint = f"set {' or '.join(names)} in the environment"
                return ModelUnavailable(self._name, f"{names[0]} is not set", hint)
        return None

    def _open(self, connection: VendorConnection, http: Any) -> AbstractContextManager[Any]:
        return nullcontext(self._make(getattr(connection.sdk, self.client_class), http))

    def _make(self, client_class: Callable[..., Any], http: Any) -> Any:
        return client_class(max_retries=0, http_client=http)

    def _key_hint(self, connection: VendorConnection) -> str:
        return super()._key_hint(connection) if self._client is not None else f"check {self.credentials}"

    def _url_hint(self, base_url: str | None) -> str:
        return f"check the model name and {self.url_variable}"


class GoogleCredentials(CloudClient):
    """A model on Vertex: the application default credentials of Google, read once for all calls."""

    credentials = "the application default credentials: gcloud auth application-default login"
    project_variable: ClassVar[str]
    _google: tuple[Any, str | None]

    def _connection(self) -> VendorConnection:
        connection = super()._connection()
        if self._client is None:
            try:
                self._google = _google_credentials(os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"))
            except Exception as error:  # noqa: BLE001 - google-auth has many kinds, and each says that there are none
                raise ModelUnavailable(self._name, str(error), f"check {self.credentials}") from None
        return connection

    def _project_id(self) -> str | None:
        return os.environ.get(self.project_variable) or self._google[1]


@lru_cache
def _google_credentials(_file: str | None) -> tuple[Any, str | None]:
    """Return the credentials and the project. With new ones each call would ask for a token first."""
    import google.auth  # from the extra

    found: tuple[Any, str | None] = google.auth.default(scopes=[_GOOGLE_SCOPE])
    return found


class BedrockModel(CloudClient, AnthropicModel):
    prefix = "anthropic-bedrock"
    client_class = "AsyncAnthropicBedrock"
    packages = ("boto3",)
    extra = "anthropic-bedrock"
    key_variables = ("AWS_BEARER_TOKEN_BEDROCK",)
    url_variable = "ANTHROPIC_BEDROCK_BASE_URL"
    credentials = "the credentials of AWS, such as AWS_ACCESS_KEY_ID or AWS_PROFILE, and AWS_REGION"


class AnthropicVertexModel(GoogleCredentials, AnthropicModel):
    prefix = "anthropic-vertex"
    client_class = "AsyncAnthropicVertex"
    packages = ("google.auth",)
    needs = (("CLOUD_ML_REGION",),)
    extra = "anthropic-vertex"
    key_variables = ()
    url_variable = "ANTHROPIC_VERTEX_BASE_URL"
    project_variable = "ANTHROPIC_VERTEX_PROJECT_ID"

    def _make(self, client_class: Callable[..., Any], http: Any) -> Any:
        project = self._project_id()
        return client_class(
            credentials=self._google[0],
            max_retries=0,
            http_client=http,
            **({"project_id": project} if project else {}),
        )


class AzureModel(CloudClient, OpenAIModel):
    prefix = "azure"
    client_class = "AsyncAzureOpenAI"
    needs = (
        ("AZURE_OPENAI_ENDPOINT",),
        ("OPENAI_API_VERSION",),
        ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
    )
    key_variables = ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN")
    url_variable = "AZURE_OPENAI_ENDPOINT"
    credentials = "AZURE_OPENAI_API_KEY or AZURE_OPENAI_AD_TOKEN"


class GeminiVertexModel(GoogleCredentials, GeminiModel):
    prefix = "gemini-vertex"
    key_variables = ()
    url_variable = "GOOGLE_VERTEX_BASE_URL"
    project_variable = "GOOGLE_CLOUD_PROJECT"

    def _open(self, connection: VendorConnection, http: Any) -> AbstractContextManager[Any]:
        return closing(
            connection.sdk.Client(
                vertexai=True,
                credentials=self._google[0],
                project=self._project_id(),
                location=os.environ.get("GOOGLE_CLOUD_LOCATION") or "global",
                http_options=self._http_options(connection, http),
            )
        )


class CloudPlugin(VendorPlugin):
    """The models of a vendor on a cloud."""

    client: ClassVar[type[CloudClient]]

    def make(self, name: str, base_url: str | None, *, takes_key: bool) -> Model:
        full = f"{self.client.prefix}:{name}"
        if base_url is not None:
            hint = f"set {self.client.url_variable} in the environment"
            raise ModelUnavailable(full, "the address of a cloud is not part of a name", hint)
        if not _PLAIN_NAME.fullmatch(name):
            hint = f"pass a client object: oakleaf.model({full!r}, client={self.client.client_class}(…))"
            raise ModelUnavailable(full, "a path or an ARN may lead to another account", hint)
        return self.client(name)


class BedrockPlugin(CloudPlugin):
    client = BedrockModel


class AnthropicVertexPlugin(CloudPlugin):
    client = AnthropicVertexModel


class AzurePlugin(CloudPlugin):
    client = AzureModel


class GeminiVertexPlugin(CloudPlugin):
    client = GeminiVertexModel


bedrock = BedrockPlugin()
anthropic_vertex = AnthropicVertexPlugin()
azure = AzurePlugin()
gemini_vertex = GeminiVertexPlugin()
