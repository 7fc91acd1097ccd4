"""Which git commands run without a person's approval, and which run at tier sandboxed at all.

git runs programs that its options, settings and hooks name, and looks for its repository by itself. So a command is
decided by lists of subcommands with their options, spelled out: an option that is not on them, abbreviated ones too, needs
approval. At tier sandboxed it is refused, and the repository must be the workspace's own, with settings that name no
program. Does not know how a command is run.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from oakleaf.errors import OutOfScope

GIT_IN_TEXT = re.compile(r"(?<![\w./+-])(?:[\w./-]*/)?git(?=\s|$)")
_END_OF_COMMAND = re.compile(r"[;|&()<>`\n]")
_INSPECT_SECONDS = 30.0

_GLOBAL_OPTION = re.compile(
    r"-P|-v|--version|--no-(pager|optional-locks|lazy-fetch|replace-objects|advice)|--(literal|glob|noglob|icase)-pathspecs"
)

# "-n=" takes a value, which may be glued to it; "-#" is a number. A long option may have a value.
_DIFF = """-p -u -s -w -b -a -R -z -c -m -r -t -W -U= -M= -C= -S= -G= --patch --no-patch --unified --stat --numstat
    --shortstat --dirstat --summary --compact-summary --name-only --name-status --raw --ignore-all-space
    --ignore-space-change --ignore-space-at-eol --ignore-blank-lines --find-renames --find-copies --no-renames
    --diff-filter --pickaxe-all --pickaxe-regex --word-diff --word-diff-regex --color --no-color --full-index --abbrev
    --no-abbrev --binary --text --exit-code --quiet --check --relative --no-relative --minimal --patience --histogram
    --diff-algorithm --inter-hunk-context --function-context --no-ext-diff --no-textconv --no-prefix --cc --root
    --ignore-submodules --cached --staged --merge-base --base --ours --theirs --no-commit-id"""
_LOG = f"""{_DIFF} -# -n= -L= -i -E -F -P -g --max-count --skip --since --after --until --before --author --committer
    --grep --regexp-ignore-case --all-match --invert-grep --oneline --format --pretty --abbrev-commit
    --no-abbrev-commit --graph --decorate --no-decorate --date --relative-date --all --branches --tags --remotes --glob
    --first-parent --merges --no-merges --reverse --follow --topo-order --date-order --author-date-order --left-right
    --left-only --right-only --cherry --cherry-pick --cherry-mark --ancestry-path --boundary --full-history
    --simplify-merges --simplify-by-decoration --not --no-walk --walk-reflogs --parents --children --source --no-notes
    --count --objects"""
_FREE = {
    "add": """-A -u -n -v -f -N --all --no-all --update --dry-run --verbose --force --intent-to-add --ignore-removal
        --refresh --renormalize --ignore-errors --chmod""",
    "blame": """-l -t -f -n -s -e -w -p -c -b -L= -M= -C= --porcelain --line-porcelain --incremental --date --root --since
        --first-parent --reverse --show-stats --show-email --show-name --show-number --abbrev""",
    "branch": """-a -r -v -l -q -i -d -m -c --all --remotes --verbose --list --show-current --contains --no-contains
        --merged --no-merged --points-at --sort --format --quiet --column --no-column --ignore-case --delete --move
        --copy --no-track --color --no-color --abbrev --no-abbrev""",
    "cat-file": "-t -s -e -p",
    "check-ignore": "-v -q -n -z --no-index --verbose --quiet --non-matching",
    "checkout": "-b= -q -f --quiet --force --detach --ours --theirs --no-track --progress --no-progress",
    "count-objects": "-v -H --verbose --human-readable",
    "describe": "--all --tags --contains --abbrev --always --long --match --exclude --dirty --first-parent --exact-match",
    "diff": _DIFF,
    "diff-files": _DIFF,
    "diff-index": _DIFF,
    "diff-tree": _DIFF,
    "for-each-ref": """--format --sort --count --contains --no-contains --merged --no-merged --points-at
        --ignore-case""",
    "grep": """-i -I -n -l -L -c -o -h -H -w -v -E -F -G -P -q -z -W -p -a -r -e= -A= -B= -C= -m= --ignore-case
        --line-number --column --files-with-matches --name-only --files-without-match --count --only-matching
        --word-regexp --invert-match --extended-regexp --fixed-strings --basic-regexp --perl-regexp --and --or --not
        --all-match --cached --untracked --max-depth --max-count --context --after-context --before-context
        --function-context --show-function --heading --break --color --no-color --full-name --text --quiet --null""",
    "init": "-q -b= --quiet --initial-branch",
    "log": _LOG,
    "ls-files": """-c -d -m -o -i -s -u -t -v -z -x= --cached --deleted --modified --others --ignored --stage --unmerged
        --exclude --exclude-standard --error-unmatch --full-name --abbrev --directory --no-empty-directory --eol
        --deduplicate --format""",
    "ls-tree": """-d -r -t -l -z --name-only --name-status --long --full-name --full-tree --abbrev --object-only
        --format""",
    "merge-base": "-a --all --octopus --independent --is-ancestor --fork-point",
    "mv": "-f -k -n -v --force --dry-run --verbose",
    "name-rev": "--tags --refs --exclude --all --name-only --always --no-undefined",
    "restore": """-s= -S -W -q --source --staged --worktree --quiet --ours --theirs --ignore-unmerged --overlay
        --no-overlay --progress --no-progress""",
    "rev-list": _LOG,
    "rev-parse": """-q --quiet --abbrev-ref --short --verify --symbolic --symbolic-full-name --all --branches --tags
        --remotes --revs-only --show-toplevel --show-prefix --show-cdup --git-dir --absolute-git-dir --git-common-dir
        --is-inside-work-tree --is-inside-git-dir --is-bare-repository --is-shallow-repository --show-object-format""",
    "rm": "-r -f -n -q --cached --force --dry-run --quiet --ignore-unmatch",
    "shortlog": """-s -n -e -c --summary --numbered --email --committer --group --since --until --after --before --all
        --no-merges --merges""",
    "show": _LOG,
    "show-ref": "-q -d -s --heads --branches --tags --verify --quiet --dereference --hash --head --abbrev",
    "status": """-s -b -v -z -u= --short --branch --verbose --porcelain --long --untracked-files --ignored --show-stash
        --ahead-behind --no-ahead-behind --renames --no-renames --find-renames --column --no-column
        --ignore-submodules""",
    "switch": "-c= -d -q -f --create --detach --quiet --force --discard-changes --no-track --guess --no-guess",
    "version": "--build-options",
}
"""What makes no commit, reaches no other repository, and runs no program that an argument names."""
_AFTER_APPROVAL = {
    "apply": "-R -3 -p= -v -q --check --stat --numstat --summary --cached --index --reverse --3way --verbose --quiet",
    "branch": _FREE["branch"] + " -D -M -C -f --force -u= -t --track --set-upstream-to --unset-upstream",
    "cherry-pick": "-n -x -s -m= --no-commit --signoff --mainline --ff --allow-empty --abort --continue --skip --quit",
    "clean": "-n -f -d -x -X -q -e= --dry-run --force --quiet --exclude",
    "commit": """-m= -F= -C= -a -q -n -s -o -i --message --file --reuse-message --all --amend --no-edit --allow-empty
        --allow-empty-message --author --date --signoff --no-verify --only --include --fixup --squash --dry-run
        --quiet --no-gpg-sign""",
    "fetch": "-p -t -v -q --prune --tags --no-tags --all --verbose --quiet --dry-run",
    "merge": """-m= -X= -n -q --message --strategy-option --no-ff --ff --ff-only --squash --commit --no-commit --abort
        --continue --quit --no-edit --quiet --stat --no-stat --no-verify --autostash""",
    "pull": "-v -q -p -t --ff-only --rebase --no-rebase --no-edit --autostash --prune --tags --verbose --quiet",
    "push": """-u -n -q -v -f -d --set-upstream --dry-run --quiet --verbose --force --force-with-lease --delete --tags
        --follow-tags --all""",
    "rebase": "-q --quiet --onto --abort --continue --skip --quit --autostash --no-autostash --root --keep-base",
    "reset": "-q -N --quiet --soft --mixed --hard --keep --merge",
    "revert": "-n -m= --no-commit --no-edit --mainline --abort --continue --skip --quit",
    "stash": "-u -k -q -a -p -m= --include-untracked --keep-index --quiet --all --message --index --staged --patch --stat",
    "tag": """-a -m= -l -d -f -n= --annotate --message --list --delete --force --sort --contains --points-at --merged
        --no-merged --format""",
}
"""What tier sandboxed runs besides, after approval."""
_WITH_REMOTE = frozenset({"fetch", "pull", "push"})
_REMOTE_NAME = re.compile(r"[\w.-]+")

_HARMLESS_SETTING = re.compile(
    r"core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks|autocrlf|eol"
    r"|safecrlf|quotepath|abbrev|compression|longpaths|untrackedcache|commitgraph|multipackindex|preloadindex"
    r"|sharedrepository|sparsecheckout|sparsecheckoutcone)"
    r"|extensions\.(objectformat|refstorage)|user\.(name|email)|init\.defaultbranch|push\.default|pull\.(rebase|ff)"
    r"|merge\.conflictstyle|rerere\.enabled|index\.(sparse|version)|feature\.manyfiles|lfs\.repositoryformatversion"
    r"|(?:color|advice)\.[\w.]+"
    r"|remote\..+\.(url|pushurl|fetch|tagopt|prune)|branch\..+\.(remote|merge|rebase|pushremote|description)"
    r"|submodule\..+\.(url|active|branch)|submodule\.active"
)
"""Settings of a repository that name no program, no folder and no further settings."""


def git_variables(root: Path | None = None) -> dict[str, str]:
    """Return variables for git: no questions, no background processes, and no folder that merely looks like a
    repository. With `root`, for tier sandboxed: it uses the repository of that folder, runs no hooks, and
    reaches others over the network only."""
    settings = {"safe.bareRepository": "explicit", "gc.autoDetach": "false"}
    variables = {
        "GIT_PAGER": "cat",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_EDITOR": "true",
        "GIT_SEQUENCE_EDITOR": "true",
    }
    if root is not None:
        settings |= {"core.hooksPath": os.devnull, "core.fsmonitor": "false"}
        variables |= {"GIT_DIR": str(root / ".git"), "GIT_ALLOW_PROTOCOL": "https:http:ssh:git"}
    variables["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (name, value) in enumerate(settings.items()):
        variables |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return variables


def git_words(argv: Sequence[str]) -> list[str] | None:
    """Return the words after `git` if the program is git, else None."""
    name = Path(argv[0]).name.casefold()
    if name in ("git", "git.exe"):
        return list(argv[1:])
    return [name[4:], *argv[1:]] if name.startswith("git-") else None


def reason_to_ask(words: Sequence[str]) -> str | None:
    """Return the reason for approval of the words after `git`; None without a reason."""
    return _unknown(words, {"-C"}, _FREE)


def script_reason_to_ask(text: str) -> str | None:
    """Return the reason for a script's approval, judged by each `git` inside up to the next `;`, `|` or the like."""
    for match in GIT_IN_TEXT.finditer(text):
        words = _END_OF_COMMAND.split(text[match.end() :], maxsplit=1)[0].split()
        if (reason := reason_to_ask(words)) is not None:
            return reason
    return None


def check_sandboxed(words: Sequence[str], command_line: str) -> None:
    """Raise OutOfScope for commands barred in tier sandboxed despite approval."""
    known = {
        name: f"{_FREE.get(name, '')} {_AFTER_APPROVAL.get(name, '')}" for name in _FREE | _AFTER_APPROVAL
    }
    reason = _unknown(words, (), known)
    if reason is None:
        reason = _foreign_remote(words)
    if reason is not None:
        raise OutOfScope(
            command_line,
            f"{reason}, and tier sandboxed runs nothing of git that may name a program, a setting or another repository",
        )


def _unknown(words: Sequence[str], with_value: Iterable[str], known: Mapping[str, str]) -> str | None:
    """Return the first word missing on the lists, in a sentence."""
    rest = iter(words)
    for word in rest:
        if word in with_value:
            next(rest, None)
        elif not word.startswith("-"):
            if word not in known:
                return f"git {word} may make a commit or run a program"
            options = known[word].split()
            unknown = next((option for option in rest if not _is_known(option, options)), None)
            return None if unknown is None else f"git {word} {unknown} may run a program or write elsewhere"
        elif not _GLOBAL_OPTION.fullmatch(word):
            return f"git {word} may run a program or name another repository"
    return None


def _is_known(word: str, options: Sequence[str]) -> bool:
    """Whether a word is no option, or a known option. Words after `--` are judged too: it may be the value of
    an option.
    """
    if not word.startswith("-") or word in ("-", "--"):
        return True
    if word.startswith("--"):
        return word.partition("=")[0] in options
    if word[1:].isdecimal():
        return "-#" in options
    for letter in word[1:]:
        if f"-{letter}=" in options:
            return True
        if f"-{letter}" not in options:
            return False
    return True


def _foreign_remote(words: Sequence[str]) -> str | None:
    names = [word for word in words if not word.startswith("-")]
    if not names or names[0] not in _WITH_REMOTE or len(names) == 1 or _REMOTE_NAME.fullmatch(names[1]):
        return None
    return f"{names[1]!r} is not the name of a remote"


async def check_repository(root: Path, environ: Mapping[str, str]) -> None:
    """Raise OutOfScope unless the folder's repository is the workspace's own, with harmless settings.

    A stranger may have made it: an unpacked archive brings its `.git` along.
    """
    folder = root / ".git"
    if not os.path.lexists(folder):
        return
    if folder.is_symlink() or not folder.is_dir():
        raise _refused(folder, "it leads to a repository outside the workspace")
    for name in ("commondir", "objects/info/alternates"):
        if os.path.lexists(folder / name):
            raise _refused(folder / name, "it leads to another repository")
    config = folder / "config"
    if os.path.lexists(config):
        listing = ["config", "--file", str(config), "--no-includes", "--list", "--name-only", "-z"]
        # Not as the repository's own git: that would already follow the settings.
        settings = await _output(listing, root, {**environ, "GIT_DIR": os.devnull})
        strange = sorted({name for name in settings if not _HARMLESS_SETTING.fullmatch(name)})
        if strange:
            raise _refused(config, f"it sets {', '.join(strange[:5])}, which may name a program or a folder")
    if os.path.lexists(folder / "index"):
        # git looks into each submodule, with the settings of its repository.
        stages = await _output(["ls-files", "--stage", "-z"], root, environ)
        for path in (line.partition("\t")[2] for line in stages if line.startswith("160000 ")):
            if os.path.lexists(root / path / ".git"):
                raise _refused(root / path, "it is a submodule with a repository of its own")


def _refused(path: Path, reason: str) -> OutOfScope:
    return OutOfScope(
        str(path),
        f"{reason}; tier sandboxed runs no git then. Review it, and use tier project if you trust it",
    )


async def _output(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the fields of a harmless git command's output, each ended by NUL; raise OutOfScope after a failure."""
    run = asyncio.to_thread(
        subprocess.run,
        ["git", *words],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_INSPECT_SECONDS,
    )
    try:
        done = await run
    except subprocess.TimeoutExpired:
        raise OutOfScope(
            shlex.join(["git", *words]), "the repository could not be inspected in time"
        ) from None
    except FileNotFoundError:
        return []  # no git: the command itself will say so
    if done.returncode:
        why = done.stderr.decode("utf-8", "replace").strip()
        raise OutOfScope(shlex.join(["git", *words]), f"the repository cannot be inspected: {why}")
    return [field for field in os.fsdecode(done.stdout).split("\0") if field]
