"""Files that a shell script writes for the program that it starts, without running it.

Here-documents (`cat <<EOF > FILE`), templates that `sed "s/WORD/value/"` or `envsubst` fills in,
and texts of `echo`. Values of the script's variables are filled in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Final

from wattree.errors import JobError, JsonTextError
from wattree.files import exists, is_file, read_text, yaml_of
from wattree.frameworks.launch import file_next_to, parsed
from wattree.frameworks.shell_flags import commands_of, line_words
from wattree.job.problems import shown
from wattree.json_text import parsed_json

#: What begins a here-document: whether its delimiter is quoted, which leaves variables as they are.
_BEGIN: Final = re.compile(r"(?<!<)<<(-?)[ \t]*(['\"\\]?)([A-Za-z_]\w*)['\"]?")
_NUMBERED: Final = re.compile(r"<<document_(\d{1,6})\b")
#: How a command writes, to the end of a file or a new one, and to which.
_TARGET: Final = re.compile(
    r"((?<![\d&>])>>?|\btee[ \t]+(?:-a[ \t]+)?)[ \t]*[\"']?([^\s\"'|;&<>]+)"
)
#: `s/WORD/value/` of sed; other patterns than words are not read.
_SUBSTITUTION: Final = re.compile(r"s([/|#@,])([\w-]+)\1(.*)\1g?", re.DOTALL)
#: Programs that fill in templates.
_FILLING: Final = frozenset({"cat", "envsubst", "sed"})
#: A value that only a shell fills in, in quotes or not.
_OPEN: Final = re.compile(
    r"(?m)(?<=[:\[,\s])\"?(\$(?:\{[^}\n]*\}|\w+|\([^\n]*?\)+))\"?(?=[ \t]*(?:[,}\]]|$))"
)
#: What states nothing: in DeepSpeed's JSON, and in YAML.
_AUTOMATIC, _NULL = '"auto"', "null"


def read_named(
    path: Path, name: str, *, comments: bool = False
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings in a file that another one names, and what is assumed of them.

    Args:
        path: A script, which may write the file, or a file of settings.
        name: Relative to the folder of `path`, or to the working folder.
        comments: JSON may have comments, as DeepSpeed itself reads it.

    Raises:
        JobError: It is neither there nor written by the script, or holds no settings.
    """
    text = None if path.suffix in {".json", ".yaml", ".yml"} else _written(path, name)
    if text is None:
        return dict(parsed(file_next_to(path, name), comments=comments)), ()
    is_yaml, source = name.endswith((".yaml", ".yml")), f"{path}: {name}"
    unfilled = dict.fromkeys(_OPEN.findall(text))
    text = _OPEN.sub(_NULL if is_yaml else _AUTOMATIC, text)
    found = yaml_of(text, source) if is_yaml else _json_of(text, source, comments=comments)
    notes = [f"{name} is as the script writes it"]
    if unfilled:
        notes.append(f"left out of {name}, as only a shell fills it in: {', '.join(unfilled)}")
    return found, tuple(notes)


def _json_of(text: str, source: str, *, comments: bool) -> dict[str, Any]:
    try:
        found = parsed_json(text, comments=comments)
    except JsonTextError as error:
        raise JobError(source, [str(error)]) from error
    if not isinstance(found, dict):
        raise JobError(source, [f"found {shown(found)}, expected an object"])
    return found


def _written(path: Path, name: str) -> str | None:
    """Return what a script writes to a file; None if it writes none of that name."""
    numbered, documents = _documents(read_text(path))
    commands, filled = commands_of(numbered)
    wanted, found, unread = name.removeprefix("./"), None, ""
    for command in commands:
        for how, target in _TARGET.findall(command):
            if filled(target).removeprefix("./") != wanted:
                continue
            text = _of_command(command, documents, filled, path)
            goes_on = found is not None and how.strip() not in {">", "tee"}
            unread = command if text is None else unread if goes_on else ""
            found = f"{found}\n{text}" if goes_on else text
    if unread and not exists(file_next_to(path, name)):
        how = " ".join(unread.split())
        why = f"{name} is written by '{how}', which is not run: run it, and import again"
        raise JobError(str(path), [why])
    return None if unread else found


def _documents(text: str) -> tuple[str, list[tuple[str, bool]]]:
    """Return a script whose here-documents are empty and numbered, and text, whether filled in."""
    lines: list[str] = []
    documents: list[tuple[str, bool]] = []
    end, body = "", [""]
    for line in text.splitlines():
        if end:
            if line.strip() != end:
                body.append(line)
                continue
            documents[-1] = ("\n".join(body), documents[-1][1])
            lines.append(f"document_{len(documents) - 1}")
            end = ""
        elif (begun := _BEGIN.search(line)) and not line.lstrip().startswith("#"):
            end, body = begun[3], []
            lines.append(f"{line[: begun.start()]}<<document_{len(documents)}{line[begun.end() :]}")
            documents.append(("", not begun[2]))
        else:
            lines.append(line)
    return "\n".join(lines), documents


def _of_command(
    command: str,
    documents: Sequence[tuple[str, bool]],
    filled: Callable[[str], str],
    path: Path,
) -> str | None:
    """Return what a command writes; None where that takes a program which is not known here."""

    def lines_filled(text: str) -> str:
        return "\n".join(map(filled, text.splitlines()))

    number = _NUMBERED.search(command)
    if number is not None and int(number[1]) < len(documents):
        text, is_filled = documents[int(number[1])]
        return lines_filled(text) if is_filled else text
    words = [filled(each) for each in line_words(command)]
    stages = [list(part) for is_pipe, part in groupby(words, "|".__eq__) if not is_pipe]
    if stages[0][0] == "echo":
        written = takewhile(lambda word: not word.startswith(">"), stages[0][1:])
        return " ".join(word for word in written if not word.startswith("-"))
    templates = [each for word in stages[0][1:] if is_file(each := file_next_to(path, word))]
    if not templates or not {stage[0] for stage in stages} <= _FILLING:
        return None
    text = read_text(templates[0])
    for stage in stages:
        text = lines_filled(text) if stage[0] == "envsubst" else text
        for found in filter(None, map(_SUBSTITUTION.fullmatch, stage)):
            text = text.replace(found[2], found[3])
    return text
