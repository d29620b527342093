"""The fixed piece of work that every cost is given in, so that figures of busy and of quiet moments can be compared.

It goes through much of the standard library once rather than through a little of it often: what neighbours on a machine
take away first is room in the caches, and a reference that does not need that room would not notice. Whatever is changed
here changes every figure of the baseline.
"""

import argparse
import ast
import configparser
import email
import io
import ipaddress
import json
import json.scanner
import logging
import shlex
import string
import textwrap
import time
import tokenize
from urllib.parse import parse_qs, urlencode, urlsplit


def cost() -> float:
    """CPU seconds that it takes: about two thousandths."""
    began = time.process_time()
    _READER.decode(_JSON)
    email.message_from_string(_MAIL).items()
    urlencode(parse_qs(urlsplit("http://u:p@h.example:80/a/b?c=d&e=f&g=%20x").query), doseq=True)
    textwrap.fill(_PROSE, 40)
    settings = configparser.ConfigParser()
    settings.read_string("[a]\nb = 1\nc = %(b)s\n[d]\ne=2\n")
    settings.get("a", "c")
    string.Template("$a and ${b}").substitute(a=1, b=2)
    ast.dump(ast.parse(_CODE))
    _FORMATTER.format(_RECORD)
    shlex.split("a 'b c' d --e=f")
    str(ipaddress.ip_network("10.0.0.0/8").num_addresses)
    list(tokenize.generate_tokens(io.StringIO(_CODE).readline))
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--x", type=int)
    arguments.parse_args(["--x", "1"])
    return time.process_time() - began


class _Reader(json.JSONDecoder):
    """Reads JSON in Python: the way through C would be over in no time."""

    def __init__(self) -> None:
        super().__init__()
        self.parse_string = json.decoder.py_scanstring  # type: ignore[attr-defined]
        self.scan_once = json.scanner.py_make_scanner(self)  # type: ignore[attr-defined]


_READER = _Reader()
_JSON = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], "n": [1, 2, {"a": None}]})
_MAIL = "".join(f"x-header-{n}: value {n}; a=b\r\n" for n in range(12)) + "\r\nbody"
_PROSE = 'The quick brown fox said "jump" over the lazy dog;\nit costs 12.50 EUR. ' * 2
_CODE = "def f(a, b=1):\n    return {k: (a + b, [x for x in range(3)]) for k in 'abc'}\n" * 3
_RECORD = logging.LogRecord("n", logging.INFO, "p", 1, "hello %s", ("x",), None)
_FORMATTER = logging.Formatter("%(asctime)s %(name)s %(message)s")
