"""The models that ship with Wattree, by name.

Each file of `catalog/` holds one group of language models as configurations; the models of other
fields are those of `zoo`.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as default
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from wattree.errors import UnknownNameError

#: What repositories call tuned versions of a model besides, which have its sizes; months and days
#: of releases, `2407` or `0724`; and the word that is a size where there is a `large`, too.
_TUNED: Final = re.compile(r"-(instruct|chat|it|pt|hf|thinking)(?=-|$)")
_DATE: Final = re.compile(r"-(2[2-9](0[1-9]|1[0-2])|(0[1-9]|1[0-2])([0-2]\d|3[01]))(?=-|$)")
_BASE: Final = re.compile(r"-base(?=-|$)")
#: What repositories put before a name, `Meta-Llama-3-8B`; and hyphens, less those between numbers.
_MAKER: Final = re.compile(r"(^|/)meta-(?=llama-)")
#: Owners of copies of others' models under the same names, by their model cards: Unsloth, Nous
#: Research (which Axolotl's examples load), and of Llama on ModelScope (ms-swift's list of models).
_MIRROR: Final = re.compile(r"^(unsloth|nousresearch|llm-research)/", re.IGNORECASE)
_HYPHEN: Final = re.compile(r"(?<!\d)-|-(?!\d)")


#: `CatalogEntry.module` of models that the transformers library builds.
LIBRARY: Final = "transformers"


#: What to do about a model that is not in the catalog.
_OTHERS: Final = "; of any other model give its config.json, `model: FOLDER/config.json`"


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogEntry:
    """A public model as the catalog holds it.

    Attributes:
        name: Name in the catalog.
        aliases: Other names, such as that of its public repository, or those of torchvision.
        source: Paper, model card, weight file or code that the numbers come from.
        published_parameters: Published parameter count with the digits it was published with,
            such as `8.03e9`; empty if none is known.
        config: As in a `config.json`; keys left out have the library's defaults. None for a model
            of `zoo`'s own modules.
        remark: What the numbers leave out or where a source contradicts itself.
        field: What it is for: `language`, `vision`, `detection`, `diffusion`, `recommendation`,
            `speech`, `multimodal`, `other`.
        module: Where it ships as a graph: module of `zoo` with its `build` and `example_inputs`, or
            `LIBRARY` where the transformers library builds it from `config`.
        options: Their arguments, where they differ from the defaults; sizes of inputs.
        published_gmac: Published multiply-adds of one sample in units of 1e9; empty if none.
        sequence_length: Tokens per sample at which it is recorded; None where nothing grows with
            them.
    """

    name: str
    aliases: tuple[str, ...]
    source: str
    published_parameters: str = ""
    config: Mapping[str, Any] | None = None
    remark: str = ""
    field: str = "language"
    module: str = ""
    options: Mapping[str, Any] = default(default_factory=dict)
    published_gmac: str = ""
    sequence_length: int | None = None

    def ships_with(self, options: Mapping[str, Any]) -> bool:
        """Return whether the graph that ships is that of these options."""
        return options.items() <= self.options.items()


@cache
def _entries() -> Mapping[str, CatalogEntry]:
    """Return the entries by name. Read once: the files cannot change while the program runs."""
    entries = {}
    here = Path(__file__).parent
    for folder in (here / "catalog", here / "zoo" / "entries"):
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if not path.name.endswith(".json"):
                continue
            of_field: dict[str, Any] = {} if folder.name == "catalog" else {"field": path.stem}
            for name, entry in json.loads(path.read_text(encoding="utf-8")).items():
                entry["aliases"] = tuple(entry["aliases"])
                entries[name] = CatalogEntry(name=name, **of_field, **entry)
    return MappingProxyType(entries)


def built_in_models() -> Mapping[str, CatalogEntry]:
    """Return the models that ship as graphs, by name."""
    return {name: entry for name, entry in _entries().items() if entry.module}


@cache
def _names() -> Mapping[str, str]:
    """Return lower-case name or alias → catalog name."""
    names = {name.lower(): name for name in _entries()}
    for entry in _entries().values():
        names.update({alias.lower(): entry.name for alias in entry.aliases})
    return MappingProxyType(names)


def model_names() -> tuple[str, ...]:
    """Return the names of the catalog's models, in order."""
    return tuple(sorted(_entries()))


def configuration_names() -> tuple[str, ...]:
    """Return the names of the models that are read from configurations, in order."""
    return tuple(sorted(name for name, entry in _entries().items() if not entry.module))


def is_model_name(name: str) -> bool:
    """Return whether the catalog has a model called `name`, as `catalog_entry` finds it."""
    return _found(name) is not None


@cache
def _found(name: str) -> str | None:
    """Return the catalog name of a model by its name, an alias, or the name of a tuned version."""
    name = _MIRROR.sub("", name.strip())
    exact = _names().get(name.lower())
    forms = (form for form in _forms(name) if len(_by_form().get(form, ())) == 1)
    return exact or next((each for form in forms for each in _by_form()[form]), None)


@cache
def _by_form() -> Mapping[str, set[str]]:
    """Return name with fewer and fewer words → models that are called so, owners left out, too."""
    models: dict[str, set[str]] = defaultdict(set)
    for name, model in _names().items():
        for part in (name, name.rsplit("/", 1)[-1]):
            for form in _forms(part):
                models[form].add(model)
    return models


def _forms(name: str) -> Iterator[str]:
    """Yield a name in lower case, without words of tuning, without dates, without `base`.

    Then each of them without the signs that spellings differ in: `LLaMA 2 7B`, `ViT-L/16`.
    """
    stem = _MAKER.sub(r"\1", _TUNED.sub("", re.sub(r"[\s_]+", "-", name.strip().lower())))
    forms = [stem, _DATE.sub("", stem)]
    if not any(_BASE.sub(f"-{size}", forms[1]) in _names() for size in ("small", "large")):
        forms.append(_BASE.sub("", forms[1]))
    yield from forms
    yield from (_HYPHEN.sub("", form.replace("/", "-")) for form in forms)


def catalog_entry(name: str) -> CatalogEntry:
    """Return the model called `name`, by its name or an alias, capitals ignored.

    A tuned version, such as `meta-llama/Llama-3.1-8B-Instruct`, is the model whose sizes it has;
    hyphens, underscores and spaces may differ. Copies of known owners are the model copied.

    Raises:
        UnknownNameError: The catalog has no such model.
    """
    found = _found(name)
    if found is None:
        raise UnknownNameError(kind="model", name=name, known=model_names(), hint=_OTHERS)
    return _entries()[found]
