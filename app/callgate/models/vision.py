"""Decides whether a model takes images, and files: by the config, then litellm's list where that is loaded anyway, then the
family.

A wrong yes costs a refused request, a wrong no only an image that is mentioned in text; so the default is no.
"""

import re
from functools import lru_cache

from callgate.models import litellm_model
from callgate.models.resolve import ModelConfig

_FAMILIES = re.compile(
    r"""^(?:
      gpt-4o|gpt-4\.1|gpt-4-turbo|gpt-4-vision|gpt-5|chatgpt-4o|o1(?!-mini|-preview)|o3(?!-mini)|o4
    | (?:[\w-]+\.)*claude-(?:3|[4-9]|opus|sonnet|haiku|fable|mythos)
    | gemini- | gemma-?[34] | grok-(?:[4-9]|2-vision) | nova-(?:lite|pro|premier)
    | pixtral | mistral-(?:small-3\.[1-9]|medium-3|large-3) | magistral-.*2509
    | llama-?4 | llama-?3\.2-(?:11b|90b) | qwen.*-vl | qwen-?vl | qvq | qwen-?3\.5 | internvl | minicpm-v | llava | bakllava
    | llama-?3\.2-vision | moondream | molmo | phi-(?:3(?:\.5)?-vision|4-multimodal) | glm-4(?:\.\d)?v | kimi-(?:vl|k2\.5) | deepseek-vl | aya-vision
    | granite-vision | smolvlm | idefics | cogvlm
    )""",
    re.VERBOSE,
)


def sees_images(entry: ModelConfig) -> bool:
    if entry.sees_images is not None:
        return entry.sees_images
    model = str(entry.litellm_params.get("model", ""))
    is_listed = litellm_model.listed(model, "supports_vision")
    if is_listed is None:
        return by_family(model)
    return is_listed


def reads_files(entry: ModelConfig) -> bool:
    """Return whether a model takes PDFs in a `file` part."""
    if entry.reads_files is not None:
        return entry.reads_files
    model = str(entry.litellm_params.get("model", ""))
    is_listed = litellm_model.listed(model, "supports_pdf_input")
    if is_listed is None:
        return files_by_family(model)
    return is_listed


_READERS = re.compile(
    r"""^(?:
      gpt-4o|gpt-4\.1|gpt-5|o1(?!-mini|-preview)|o3(?!-mini)|o4 | gemini-
    | (?:[\w-]+\.)*claude-(?:3-[57]|[4-9]|opus-4|sonnet-4|haiku-4)
    )""",
    re.VERBOSE,
)


@lru_cache(maxsize=1024)
def files_by_family(model: str) -> bool:
    """The same for files."""
    return _READERS.search(_last_name(model)) is not None


@lru_cache(maxsize=1024)
def by_family(model: str) -> bool:
    """Return what the name implies, without provider and organisation."""
    return _FAMILIES.search(_last_name(model)) is not None


def _last_name(model: str) -> str:
    last = model.lower().rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[\s_:@]+", "-", last)
