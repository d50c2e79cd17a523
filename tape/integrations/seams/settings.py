"""The settings of a call that a comparison needs. All others, such as headers and bodies of the HTTP request, are left
out: they do not tell what the model is asked, and they hold keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["compared"]

_COMPARED = {
    "audio", "automatic_function_calling", "cache_control", "cached_content", "candidate_count",
    "conversation_id", "disable_parallel_tool_use", "effort", "enable_thinking", "format", "frequency_penalty",
    "function_call", "functions", "image_config", "include", "include_usage", "keep_alive", "logit_bias",
    "logprobs", "max_completion_tokens", "max_output_tokens", "max_tokens", "max_tokens_to_sample",
    "media_resolution", "min_p", "modalities", "model", "n", "num_ctx", "num_predict", "output",
    "parallel_tool_calls", "prediction", "presence_penalty", "previous_response_id", "prompt",
    "prompt_cache_retention", "reasoning", "reasoning_effort", "reasoning_summary", "repetition_penalty",
    "response_format", "response_include", "response_json_schema", "response_logprobs", "response_mime_type",
    "response_modalities", "response_schema", "safety_settings", "seed", "service_tier", "speech_config",
    "stop", "stop_sequences", "store", "stream", "system_instruction", "system_prompt", "temperature", "text",
    "text_verbosity", "thinking", "thinking_config", "tool_choice", "tool_config", "tools", "top_a", "top_k",
    "top_logprobs", "top_p", "truncation", "user_prompt", "verbosity",
}  # fmt: skip


def compared(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings that say what a model is asked, also those whose names begin with that of a provider."""
    return {
        name: value
        for name, value in (settings or {}).items()
        if value is not None and (name in _COMPARED or name.partition("_")[2] in _COMPARED)
    }
