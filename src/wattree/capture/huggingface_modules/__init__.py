"""Models of the transformers library, built from their configuration alone. Needs extra `hf`.

A `config.json` names a class of the library and its sizes. That class is built without weights,
without network and never with code from a repository, and gets made-up inputs of the right
shapes, so that `capture.record` can write down what it does.
"""

from wattree.capture.huggingface_modules.choices import ConfigurationChoices
from wattree.capture.huggingface_modules.inputs import InputSizes
from wattree.capture.huggingface_modules.module import huggingface_module, recorded_config

__all__ = [
    "ConfigurationChoices",
    "InputSizes",
    "huggingface_module",
    "recorded_config",
]
