"""Files that a shell script writes for the program that it starts, without running it.

Here-documents (`cat <<EOF > FILE`), templates that `sed "s/WORD/value/"` or `envsubst` fills in,
and texts of `echo`. Values of the script's variables are filled in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, groupby, takewhile
from pathlib import Path
from typing import Any, Final

from wattree.errors import JobError, JsonTextError
from wattree.files import exists, is_file, read_text, yaml_of
from wattree.frameworks.launch import parsed
from wattree.frameworks.named_files import file_next_to, is_elsewhere
from wattree.frameworks.shell_flags import commands_of, line_words, script_text
from wattree.job.problems import shown
from wattree.json_text import parsed_json

#: What begins a here-document: whether its delimiter is quoted, which leaves variables as they are.
_BEGIN: Final = re.compile(r"(?<!<)<<-?[ \t]*(['\"\\]?)([A-Za-z_]\w*)['\"]?")
_NUMBERED: Final = re.compile(r"<<document_(\d{1,6})\b")
#: How a command writes, to the end of a file or a new one, and to which.
_TARGET: Final = re.compile(
    r"((?<![\d&>])>>?|\btee[ \t]+(?:-a[ \t]+)?)[ \t]*((?:[^\s\"'|;&<>]|\"[^\"]*\"|'[^']*')+)"
)
#: What is quoted, and what else ends a word.
_JOINT: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'[^']*')|(\|\|?|>>?)""")
_ANEW: Final = frozenset({">", "tee"})
#: The option of sed that has it write the file which it reads.
_IN_PLACE: Final = "-i"
#: Programs that write what they read; that copy files; that read the files which they name.
_PASSING: Final = frozenset({":", "cat", "cp", "echo", "mv", "tee"})
_COPYING: Final = frozenset({"cp", "mv"})
_READING: Final = frozenset({"cat", "cp", "envsubst", "mv", "sed"})
#: What may stand before the program of a command.
_BEFORE: Final = re.compile(r"sudo|[({&]|[A-Za-z_]\w*=.*", re.DOTALL)
#: `s/WORD/value/` of sed; other patterns than words are not read.
_SUBSTITUTION: Final = re.compile(r"s([/|#@,])([\w-]+)\1((?:(?!\1).)*)\1(g?)", re.DOTALL)
#: Options of sed that change nothing of these.
_OPTION: Final = re.compile(r"-(?:[eEr]|i.*)")
#: A value that only a shell fills in, in quotes or not.
_OPEN: Final = re.compile(
    r"(?m)(?<=[:\[,\s])\"?(\$(?:\{[^}\n]*\}|\w+|\([^\n]*?\)+))\"?(?=[ \t]*(?:[,}\]]|$))"
)
#: What states nothing: in DeepSpeed's JSON, and in YAML.
_AUTOMATIC, _NULL = '"auto"', "null"


@dataclass(frozen=True, slots=True)
class NamedFile:
    """A file of settings that another one names.

    Attributes:
        values: The settings.
        path: Names in it are relative to the folder of this.
        assumed: What is assumed of them, where a script writes the file.
    """

    values: dict[str, Any]
    path: Path
    assumed: tuple[str, ...] = ()


def read_named(
    path: Path, name: str, *, script: Path | None = None, comments: bool = False
) -> NamedFile:
    """Return the settings in a file that another one names.

    Args:
        path: A script, which may write the file, or a file of settings.
        name: As `file_next_to` finds it.
        script: Uses `path`, and may write the file.
        comments: JSON may have comments, as DeepSpeed itself reads it.

    Raises:
        JobError: It is neither there nor written by the script, or holds no settings.
    """
    script, file = script or path, file_next_to(path, name)
    is_script = script.suffix not in {".json", ".yaml", ".yml"}
    text, unread = _written(script, name) if is_script else (None, "")
    if unread and not exists(file):
        why = f"{name} is written by '{unread}', which is not run: run it, and import again"
        raise JobError(str(script), [why])
    if text is None and "$" in file.name:
        why = f"found '{file.name}', which only a shell fills in, expected the name of a file"
        raise JobError(str(script), [why])
    if text is None or unread:
        notes = [f"settings of {file.name} as in {file}"] if is_elsewhere(path, name, file) else []
        if unread:
            notes.append(f"{name} is as it was found: '{unread}', which writes it, is not run")
        return NamedFile(_settings_in(file, comments=comments), file, tuple(notes))
    is_yaml, source = name.endswith((".yaml", ".yml")), f"{script}: {name}"
    unfilled = dict.fromkeys(_OPEN.findall(text))
    text = _OPEN.sub(_NULL if is_yaml else _AUTOMATIC, text)
    found = yaml_of(text, source) if is_yaml else _json_of(text, source, comments=comments)
    notes = [f"{name} is as the script writes it"]
    if unfilled:
        notes.append(f"left out of {name}, as only a shell fills it in: {', '.join(unfilled)}")
    return NamedFile(found, script, tuple(notes))


def _settings_in(file: Path, *, comments: bool) -> dict[str, Any]:
    """Return the settings in a file, whose name may not say in which format they are."""
    if file.suffix in {".json", ".yaml", ".yml"}:
        return dict(parsed(file, comments=comments))
    text = read_text(file)
    if text.lstrip().startswith("{"):
        return _json_of(text, str(file), comments=comments)
    return yaml_of(text, str(file))


def _json_of(text: str, source: str, *, comments: bool) -> dict[str, Any]:
    try:
        found = parsed_json(text, comments=comments)
    except JsonTextError as error:
        raise JobError(source, [str(error)]) from error
    if not isinstance(found, dict):
        raise JobError(source, [f"found {shown(found)}, expected an object"])
    return found


def _written(path: Path, name: str) -> tuple[str | None, str]:
    """Return what a script writes to a file, None for nothing, and a command that is not read."""
    numbered, documents = _documents(script_text(path))
    commands, filled = commands_of(numbered)
    script = _Script(path, documents, filled)
    file, found, unread = file_next_to(path, name), None, ""
    for command in commands:
        how = script.how_written(command, name)
        if not how or (unread and how not in _ANEW):
            continue
        if how not in _ANEW and found is None and is_file(file):
            found = read_text(file)
        text = script.output(command, name, found if how == _IN_PLACE else None)
        unread = command if text is None else ""
        goes_on = found is not None and how not in {*_ANEW, _IN_PLACE}
        found = f"{found}\n{text}" if goes_on else text
    return found, " ".join(_NUMBERED.sub("<<…", unread).split())


def _documents(text: str) -> tuple[str, list[tuple[str, bool]]]:
    """Return a script whose here-documents are empty and numbered, and text, whether filled in."""
    given = text.splitlines()
    last = {line.strip(): place for place, line in enumerate(given)}
    lines: list[str] = []
    documents: list[tuple[str, bool]] = []
    place = 0
    while place < len(given):
        line, place = given[place], place + 1
        begun = None if line.lstrip().startswith("#") else _BEGIN.search(line)
        if begun is None or last.get(begun[2], -1) < place:
            lines.append(line)
            continue
        end = next(at for at in range(place, len(given)) if given[at].strip() == begun[2])
        body, place = given[place:end], end + 1
        number = f"document_{len(documents)}"
        lines += [f"{line[: begun.start()]} <<{number} {line[begun.end() :]}", number]
        documents.append(("\n".join(body), not begun[1]))
    return "\n".join(lines), documents


@dataclass(frozen=True, slots=True)
class _Script:
    """What the commands of a script write.

    Attributes:
        path: Of the script.
        documents: Its here-documents, and whether variables are filled into each.
        filled: Fills in the script's variables.
    """

    path: Path
    documents: Sequence[tuple[str, bool]]
    filled: Callable[[str], str]

    def how_written(self, command: str, name: str) -> str:
        """Return how a command writes a file: by what redirects, or in place; empty for not."""
        for how, target in _TARGET.findall(command):
            if self._is(name, target):
                return " ".join(how.split())
        words = self._stages(command)[0]
        if words[0] in _COPYING and self._is(name, words[-1]):
            return ">"
        is_edited = words[0] == "sed" and any(word.startswith(_IN_PLACE) for word in words)
        return _IN_PLACE if is_edited and any(self._is(name, word) for word in words) else ""

    def output(self, command: str, name: str, text: str | None) -> str | None:
        """Return what a command writes; None where that takes a program which is not known here.

        Args:
            command: With numbers in place of here-documents.
            name: The file that it writes.
            text: What it edits in place.
        """
        for words in self._stages(command):
            text = self._of_program([word for word in words if not self._is(name, word)], text)
            if text is None or text.startswith("$"):  # a variable that nothing sets
                return None
        return text

    def _is(self, name: str, target: str) -> bool:
        plain = self.filled(target).replace('"', "").replace("'", "")
        return plain.removeprefix("./") == name.removeprefix("./")

    def _stages(self, command: str) -> list[list[str]]:
        """Return the words of each program of a pipe."""
        apart = _JOINT.sub(lambda found: found[1] or f" {found[2]} ", command)
        words = [self.filled(each) for each in line_words(apart) if each != ";"]
        while "||" in words:
            words = words[words.index("||") + 1 :]
        stages = [list(part) for is_pipe, part in groupby(words, "|".__eq__) if not is_pipe]
        return [list(dropwhile(_BEFORE.fullmatch, stage)) or [""] for stage in stages] or [[""]]

    def _lines_filled(self, text: str) -> str:
        return "\n".join(map(self.filled, text.splitlines()))

    def _of_program(self, words: Sequence[str], text: str | None) -> str | None:
        """Return what a program writes that reads a text, or what it names itself."""
        program, *given = [*takewhile(lambda word: not word.startswith(">"), words)] or [":"]
        number = _NUMBERED.search(" ".join(words))
        files = [each for word in given if is_file(each := self._file(word))]
        if number is not None and int(number[1]) < len(self.documents):
            text, is_filled = self.documents[int(number[1])]
            text = self._lines_filled(text) if is_filled else text
        elif program == ":":  # nothing, as `> FILE` does
            text = ""
        elif program == "echo":
            text = " ".join(dropwhile(lambda word: word.startswith("-"), given))
        elif files and program in _READING:
            text = "\n".join(map(read_text, files))
        if text is None or program in _PASSING or [program, *given] == ["jq", "."]:
            return text
        if program == "envsubst":
            return self._lines_filled(text)
        others = [
            word for word in given if not word.startswith("<") and not is_file(self._file(word))
        ]
        return _substituted(text, others) if program == "sed" else None

    def _file(self, word: str) -> Path:
        name = word.removeprefix("<")  # of a folder that only a shell knows it may be any
        return self.path.parent / name if "$" in name else file_next_to(self.path, name)


def _substituted(text: str, words: Sequence[str]) -> str | None:
    """Return a text after the substitutions of sed; None where one is of more than words."""
    parts = (part.strip() for word in words for part in word.split(";"))
    for part in filter(None, parts):
        if (found := _SUBSTITUTION.fullmatch(part)) is not None:
            most = -1 if found[4] else 1
            lines = (line.replace(found[2], found[3], most) for line in text.splitlines())
            text = "\n".join(lines)
        elif not _OPTION.fullmatch(part):
            return None
    return text
