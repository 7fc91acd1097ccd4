// Syntax highlighting for comments, strings, numbers and keywords.
// Knows families of languages, not grammars. Unknown languages stay plain.

import { h } from "./dom.js";

const MOST = 60_000;
const C = "as async await boolean break case catch char class const continue default delete do double else enum export extends extern false final finally float fn for from func function go if impl implements import in instanceof int interface let long match mod mut new nil null of package private protected pub public return self short static struct super switch this throw throws true try type typeof undefined union unsafe use var void while yield";
const PYTHON = "and as assert async await break case class continue def del elif else except False finally for from global if import in is lambda match None nonlocal not or pass raise return self True try while with yield";
const SHELL = "case cd do done echo elif else esac exit export fi for function if in local return set then while";
const SQL = "all and as asc begin between by case commit create delete desc distinct drop else end exists foreign from full group having in index inner insert into is join key left like limit not null offset on or order outer primary references right rollback select set table then union unique update values view when where with";
const RUBY = "alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo require rescue return self super then true unless until when while yield";

const SLASHES = "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)", HASH = "#[^\\n]*", DASHES = "--[^\\n]*|\\/\\*[\\s\\S]*?(?:\\*\\/|$)";
const STRINGS = `"(?:[^"\\\\\\n]|\\\\.)*"?|'(?:[^'\\\\\\n]|\\\\.)*'?`;
const THREES = `"""[\\s\\S]*?(?:"""|$)|'''[\\s\\S]*?(?:'''|$)`, TICKS = "`(?:[^`\\\\]|\\\\[\\s\\S])*`?";

const FAMILIES = {
  c: [SLASHES, `${TICKS}|${STRINGS}`, C],
  python: [HASH, `${THREES}|${STRINGS}`, PYTHON],
  shell: ["(?<![^\\s;|&(])#[^\\n]*", STRINGS, SHELL],
  sql: [DASHES, STRINGS, SQL],
  ruby: [HASH, STRINGS, RUBY],
  data: ["(?!)", STRINGS, "true false null"],
  yaml: ["(?<![^\\s])#[^\\n]*", STRINGS, "true false null yes no"],
  markup: ["<!--[\\s\\S]*?(?:-->|$)", STRINGS, ""],
};

const NAMES = {
  python: "python", py: "python", pyi: "python", sh: "shell", bash: "shell", zsh: "shell", shell: "shell", console: "shell",
  sql: "sql", json: "data", jsonl: "data", yaml: "yaml", yml: "yaml", toml: "yaml", ini: "yaml", ruby: "ruby", rb: "ruby",
  html: "markup", xml: "markup", svg: "markup", css: "c", c: "c", h: "c", cpp: "c", cc: "c", cs: "c", java: "c", js: "c",
  jsx: "c", ts: "c", tsx: "c", mjs: "c", javascript: "c", typescript: "c", go: "c", rust: "c", rs: "c", php: "c", swift: "c",
  kotlin: "c", kt: "c", scala: "c", dart: "c",
};

const made = new Map();

function pattern(family) {
  if (!made.has(family)) {
    const [comment, string, words] = FAMILIES[family];
    const flags = family === "sql" ? "gi" : "g";
    const keywords = words ? `\\b(?:${words.split(" ").join("|")})\\b` : "(?!)";
    made.set(family, new RegExp(`(${comment})|(${string})|\\b(0x[\\da-f]+|\\d[\\d_]*(?:\\.\\d+)?(?:e[+-]?\\d+)?)\\b|(${keywords})`,
      flags));
  }
  return made.get(family);
}

export function languageOf(path) {
  return String(path).split(/[./]/).at(-1).toLowerCase();
}

/** The nodes of a piece of code. */
export function highlight(code, language) {
  const family = NAMES[String(language ?? "").toLowerCase()];
  if (!family || code.length > MOST) return [code];
  const nodes = [];
  let at = 0;
  for (const match of code.matchAll(pattern(family))) {
    if (!match[0]) continue;
    if (match.index > at) nodes.push(code.slice(at, match.index));
    const kind = match[1] !== undefined ? "comment" : match[2] !== undefined ? "string" : match[3] !== undefined ? "number" : "keyword";
    nodes.push(h(`span.hl-${kind}`, match[0]));
    at = match.index + match[0].length;
  }
  nodes.push(code.slice(at));
  return nodes;
}
