"""Models of the transformers library, built from their configuration alone. Needs extra `hf`.

A `config.json` names a class of the library and its sizes. That class is built without weights,
without network and never with code from a repository, and gets made-up inputs of the right
shapes, so that `capture.record` can write down what it does.
"""

from wattree.capture.huggingface_modules.choices import ConfigurationChoices
from wattree.capture.huggingface_modules.classes import library_class, library_config
from wattree.capture.huggingface_modules.inputs import InputSizes
from wattree.capture.huggingface_modules.module import (
    HuggingFaceModule,
    huggingface_module,
    recorded_config,
)

__all__ = [
    "ConfigurationChoices",
    "HuggingFaceModule",
    "InputSizes",
    "huggingface_module",
    "library_class",
    "library_config",
    "recorded_config",
]
