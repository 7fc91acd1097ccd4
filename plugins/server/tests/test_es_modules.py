"""The viewer's modules as one script: order, stand-ins, and what is refused."""

from __future__ import annotations

import pytest

from oakleaf_server.es_modules import join_modules


class TestModules:
    def test_each_runs_once_behind_what_it_imports(self) -> None:
        sources = {
            "a.js": 'import { b, c as d } from "./b.js";\nimport "./c.js";\nb(d);\n',
            "b.js": 'import { c } from "./c.js";\nexport function b() {}\nexport { c };\n',
            "c.js": "export const c = 2;\n",
        }
        script = join_modules(sources, "a.js", {})
        assert [script.index(f"const ${name}_js =") for name in "cba"] == sorted(
            script.index(f"const ${name}_js =") for name in "cba"
        )
        assert script.count("const $c_js =") == 1
        assert "const { b, c: d } = $b_js;" in script

    def test_a_stand_in_is_given_to_everybody_but_itself(self) -> None:
        sources = {
            "main.js": 'import { ask } from "./api.js";\nask();\n',
            "api.js": "export function ask() {}\n",
            "offline.js": 'import { ask as before } from "./api.js";\nexport function ask() { before(); }\n',
        }
        script = join_modules(sources, "main.js", {"api.js": "offline.js"})
        assert "const { ask } = $offline_js;" in script
        assert "const { ask: before } = $api_js;" in script

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ('import { gone } from "./b.js";\n', "b.js of the viewer exports no gone"),
            ('import { b } from "./a.js";\n', "import each other: a.js → a.js"),
            ('import all from "./b.js";\n', "cannot be joined: import all"),
            ("export default 1;\n", "cannot be joined: export default"),
            ("export let changed = 1;\n", "cannot be joined: export let"),
        ],
    )
    def test_what_it_does_not_understand_it_refuses(self, source: str, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            join_modules({"a.js": source, "b.js": "export const b = 1;\n"}, "a.js", {})

    def test_no_literal_ends_the_script(self) -> None:
        script = join_modules({"a.js": 'const a = "</script><!-- <SCRIPT>";\n'}, "a.js", {})
        assert '"\\x3C/script>\\x3C!-- \\x3CSCRIPT>"' in script
