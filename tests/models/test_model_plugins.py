"""Models of strangers: entry points of the group `oakleaf.models`, good and bad ones."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import oakleaf
from oakleaf import plugins
from oakleaf.errors import ModelRefused, ModelUnavailable, OakleafError, PluginBroken, PluginMissing
from oakleaf.models.availability import available_models, check_available
from oakleaf.models.base import Delta
from oakleaf.models.names import foreign_address, is_model_name, model_by_name, stored_model, with_provider
from oakleaf.models.scripted import ScriptedModel
from oakleaf.providers.anthropic import AnthropicModel
from support.foreign_plugins import Site

ECHO = """
    import os

    from oakleaf.core.messages import assistant
    from oakleaf.errors import ModelUnavailable
    from oakleaf.models.base import ModelPlugin
    from oakleaf.wire import Answer

    class EchoModel:
        provider = "openai-chat"

        def __init__(self, model, base_url, takes_key):
            self.model, self.base_url, self.takes_key = model, base_url, takes_key
            self.name = f"echo:{model}@{base_url}" if base_url else f"echo:{model}"

        async def stream(self, request):
            said = request.messages[-1].text
            yield Answer(assistant(f"{self.model} heard {said}"), provider=self.provider, finish="stop")

    class EchoPlugin(ModelPlugin):
        families = ("echo-", "claude-", "")
        url_variable = "ECHO_BASE_URL"

        def make(self, name, base_url, *, takes_key):
            return EchoModel(name, base_url, takes_key)

        def problem(self, model):
            if "ECHO_KEY" not in os.environ:
                return ModelUnavailable(model.name, "no key was found", "set ECHO_KEY")

    plugin = EchoPlugin()
"""
LOUD = """
    class LoudPlugin(EchoPlugin):
        def make_of(self, client, name):
            model = self.make(name, None, takes_key=False)
            model.client = client
            return model

    plugin = LoudPlugin()
"""
BROKEN = """
    from oakleaf.models.base import ModelPlugin

    class Plugin(ModelPlugin):
        def make(self, name, base_url, *, takes_key):
            {make}

    plugin = Plugin()
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder of strangers' distributions on the path, with a good one that adds the prefix `echo`."""
    site = Site(tmp_path)
    site.install("echo_models", {"models": {"echo": "echo_models:plugin"}}, {"echo_models.py": ECHO})
    known = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    plugins.providers.cache_clear()
    yield site
    monkeypatch.undo()
    plugins.providers.cache_clear()
    for name in set(sys.modules) - known:
        if not name.startswith("oakleaf"):
            del sys.modules[name]


def install(site: Site, name: str, source: str) -> None:
    site.install(name, {"models": {name: f"{name}:plugin"}}, {f"{name}.py": source})
    plugins.providers.cache_clear()


class TestOfAStranger:
    @pytest.mark.extra
    def test_a_plugins_models_answer_at_the_command_line(
        self, site: Site, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = ("--store", str(site.folder / "s.db"), "run", "--model", "echo:large", "Hi.")
        refused = site.run(*arguments)
        assert (refused.code, "no key was found" in refused.err, "set ECHO_KEY" in refused.err) == (
            2,
            True,
            True,
        )
        monkeypatch.setenv("ECHO_KEY", "k")
        answered = site.run(*arguments)
        assert (answered.code, "large heard Hi." in answered.out) == (0, True), answered.err

    def test_a_plugins_prefix_is_known_and_listed(self, site: Site) -> None:
        assert is_model_name("echo:large")
        with pytest.raises(ModelUnavailable) as unknown:
            model_by_name("mistral:small")
        assert re.fullmatch(
            "known names: anthropic:…, .*, echo:…, gemini:…, .*, scripted:…", unknown.value.hint
        )

    def test_a_plugin_takes_over_no_family_of_the_library(self, site: Site) -> None:
        assert with_provider("echo-large") == "echo:echo-large"
        assert with_provider("claude-opus") == "anthropic:claude-opus"
        assert with_provider("anything") == "anything"

    def test_a_plugin_takes_over_no_prefix_of_the_library(self, site: Site) -> None:
        site.install("thief", {"models": {"anthropic": "thief:plugin", "scripted": "thief:plugin"}})
        plugins.providers.cache_clear()
        assert isinstance(model_by_name("anthropic:claude"), AnthropicModel)
        script = site.folder / "script.json"
        script.write_text('["Hi."]')
        assert isinstance(model_by_name(f"scripted:{script}"), ScriptedModel)

    def test_its_refusal_of_a_client_object_is_told(self, site: Site) -> None:
        with pytest.raises(ModelUnavailable, match="EchoPlugin takes no client object; pass its name alone"):
            oakleaf.model("echo:large", client=object())

    def test_its_model_of_a_client_object_is_returned(self, site: Site) -> None:
        install(site, "loud", ECHO + LOUD)
        client = object()
        model = oakleaf.model("loud:large", client=client)
        assert (model.client, model.model) == (client, "large")
        install(site, "dumb", ECHO + LOUD.replace("return model", "return 7"))
        with pytest.raises(PluginBroken, match="make_of returned int, which is no model"):
            oakleaf.model("dumb:large", client=client)


@pytest.mark.attack
class TestStoredName:
    def test_a_foreign_address_is_refused(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        name = "echo:m@http://evil.example/v1"
        with pytest.raises(ModelRefused):
            stored_model(name, "ses_x")
        monkeypatch.setenv("ECHO_BASE_URL", "http://evil.example/v1/")
        assert stored_model(name, "ses_x").takes_key is True

    def test_a_loopback_address_gets_no_key(self, site: Site) -> None:
        name = "echo:m@http://127.0.0.1:8000/v1"
        assert stored_model(name, "ses_x").takes_key is False
        assert model_by_name(name).takes_key is True

    def test_a_plugin_that_cannot_leave_the_key_out_is_refused(self, site: Site) -> None:
        install(site, "naive", ECHO.replace("base_url, *, takes_key):", "base_url):"))
        with pytest.raises(PluginBroken, match=r"naive 1\.0 cannot be used: make raised TypeError"):
            stored_model("naive:m@http://127.0.0.1:8000/v1", "ses_x")

    def test_an_address_of_a_broken_plugin_is_foreign(self, site: Site) -> None:
        install(site, "broken", "1 / 0")
        assert foreign_address("broken:m@http://evil.example/v1") == "http://evil.example/v1"
        with pytest.raises(ModelRefused):
            stored_model("broken:m@http://evil.example/v1", "ses_x")


class TestBroken:
    @pytest.mark.parametrize(
        ("source", "reason"),
        [
            ("1 / 0", "importing broken raised ZeroDivisionError"),
            ("plugin = 42", "it is int, and no ModelPlugin"),
            ("plugins = 42", "has no attribute 'plugin'"),
            (
                ECHO.replace('("echo-", "claude-", "")', '"echo-"'),
                "its families are 'echo-', and no tuple of names",
            ),
            (ECHO.replace('("echo-", "claude-", "")', "(None,)"), "its families are (None,), and no tuple"),
            (ECHO.replace('"ECHO_BASE_URL"', "42"), "its url_variable is 42, and no name of a variable"),
            (BROKEN.format(make="return None"), "make returned NoneType, which is no model"),
            (
                BROKEN.format(make="self.stream = print; return self"),
                "its wire format None is none of anthropic",
            ),
            (BROKEN.format(make="raise KeyError(name)"), "make raised KeyError: 'm'"),
            (
                ECHO.replace('"openai-chat"', '"echo"').replace('"echo-"', '"other-"'),
                "its wire format 'echo' is none of anthropic, openai-chat",
            ),
        ],
    )
    def test_a_broken_plugin_is_named_and_other_models_work(
        self, site: Site, source: str, reason: str
    ) -> None:
        install(site, "broken", source)
        with pytest.raises(PluginBroken) as broken:
            model_by_name("broken:m")
        assert "the model 'broken' of broken 1.0 cannot be used" in broken.value.problem
        assert reason in broken.value.problem
        assert "uninstall broken" in str(broken.value.hint)
        assert with_provider("echo-large") == "echo:echo-large"
        assert model_by_name("echo:m").provider == "openai-chat"
        assert isinstance(model_by_name("anthropic:m"), AnthropicModel)

    def test_a_missing_package_is_named(self, site: Site) -> None:
        install(site, "thirsty", "import no_such_package")
        with pytest.raises(PluginMissing, match="needs no_such_package for the model 'thirsty'"):
            available_models(["thirsty:m"])

    @pytest.mark.parametrize("problem", ["raise KeyError(1)", "return 'no key'"])
    def test_a_nonsense_problem_is_named(self, site: Site, problem: str) -> None:
        source = ECHO.replace('if "ECHO_KEY" not in os.environ:', f"if True:\n                {problem}")
        install(site, "broken", source.replace("echo:", "broken:"))
        with pytest.raises(PluginBroken, match=r"problem (raised KeyError|returned str)"):
            available_models(["broken:m"])

    def test_a_plugins_own_error_is_raised_unchanged(self, site: Site) -> None:
        raising = "from oakleaf.errors import ModelUnavailable; raise ModelUnavailable(name, 'retired', 'ask for another')"
        install(site, "honest", BROKEN.format(make=raising))
        with pytest.raises(ModelUnavailable, match="retired"):
            model_by_name("honest:m")


class TestWithoutAPlugin:
    def test_a_script_asks_no_plugin(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail() -> tuple[plugins.Provider, ...]:
            raise OakleafError("a plugin was asked for", "ask none")

        script = tmp_path / "script.json"
        script.write_text('["Hi."]')
        monkeypatch.setattr(plugins, "providers", fail)
        assert is_model_name(f"scripted:{script}")
        (model,) = available_models([f"scripted:{script}"])
        assert check_available(model) is model

    def test_a_model_of_ones_own_is_available(self) -> None:
        class Own:
            provider, model = "anthropic", "own"

            async def stream(self, request: object) -> object:
                yield Delta()

        own = Own()
        assert check_available(own) is own
