"""The marks of calls in all formats: what opens and ends a call, and a value in one."""

import re
from collections.abc import Mapping
from typing import Final

PAIRS: Final[Mapping[str, str]] = {
    "<tool_call>": "</tool_call>",
    "<function=": "</function>",
    "<function ": "</function>",
    "<invoke ": "</invoke>",
    "<" + "antml" + ":invoke ": "</" + "antml" + ":invoke>",
    "<atem:invoke ": "</atem:invoke>",
    "<steptml:invoke ": "</steptml:invoke>",
    "<｜DSML｜invoke ": "</｜DSML｜invoke>",
    "<｜DSML｜ invoke ": "</｜DSML｜ invoke>",
    "]<]minimax[>[<invoke ": "]<]minimax[>[</invoke>",
    "<longcat_tool_call>": "</longcat_tool_call>",
    "<tool_call:opensource>": "</tool_call:opensource>",
    "<tool_calls>": "</tool_calls>",
    "<TOOLCALL>": "</TOOLCALL>",
    "<dots_function_call>": "</dots_function_call>",
    "<|tool_call:start|>": "<|tool_call:end|>",
    "<|tool_call:begin|>": "<|tool_call:end|>",
    "<|open|>call ": "<|close|>call<|sep|>",
    "<|tool_call_begin|>": "<|tool_call_end|>",
    "<｜tool▁call▁begin｜>": "<｜tool▁call▁end｜>",
    "<｜tool_call_begin｜>": "<｜tool_call_end｜>",
    "<|START_ACTION|>": "<|END_ACTION|>",
    "<|action_start|>": "<|action_end|>",
    "<|tools_prefix|>": "<|tools_suffix|>",
    "<|tool_call>": "<tool_call|>",
    "<start_function_call>": "<end_function_call>",
}
"""The opening and end marks of calls."""

LEAD = re.compile(
    r"(?:[^<]{0,80}(?:<\|\w+\|>[^<]{0,80}){0,3}<\|message\|>)?(?:[\s>]*(?:<[\w:｜ ]*(?:function_calls|tool_calls?|calls|tool▁calls▁begin|tool_calls_begin)(?::\w+)?｜?>"
    r"|<\|tool_calls_section_begin\|>|<\|open\|>tools<\|sep\|>|\]<\]minimax\[>\[<tool_call>))*[\s>]*"
)
"""Marks around calls, the last of which may open the call itself; also in a block quote."""
OPENING = re.compile("|".join(map(re.escape, sorted(PAIRS, key=len, reverse=True))))
UNPAIRED = re.compile(
    r"<\|tool_call\|>|<function_call>|\[TOOL_CALLS\]|<\|message\|>|>>>|<\|function_call\|>|function call<\|role_sep\|>|<\|content_invoke_tool_json\|>"
    r"|functools\[|Action Input:"
)
"""Opening marks of calls without an end mark."""


VALUE = re.compile(
    r"<[\w:｜ ]*param(?:eter)?\b[^<>]{0,512}>|<\w*arg_value(?::\w+)?>|<\|tool_arg:value\|>|<\|open\|>argument[^<>]{0,512}<\|sep\|>"
    r"|\]<\]minimax\[>\[<(?!/|invoke|tool_call)[^<>]*>"
)
VALUE_END = re.compile(
    r"</[\w:｜ ]*param(?:eter)?>|</\w*arg_value(?::\w+)?>|<\|tool_arg:end\|>|<\|close\|>argument"
    r"|\]<\]minimax\[>\[</(?!invoke|tool_call)"
)
QUOTE = re.compile(r"(?<!\\)(?:\\\\)*(?:\"|<\|\"\|>|<escape>)")
STRAY_ENDS = re.compile(
    r"(?:^|\n)[ \t]*(?:\"[ \t]*)?\}[}\] \t]*|(?:^|\n)[ \t]*(?:</[\w:｜ ]*param(?:eter)?>|</\w*arg_value(?::\w+)?>)"
)
"""Ends of a value at the beginning of a line, of a call that opened before."""
