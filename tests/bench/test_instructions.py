"""Counting the processor's instructions: what is read of callgrind's list, and what a feature is turned off by."""

import yaml

from bench.instructions import FEATURES, change, read_functions
from bench.served import configured
from callgate.config.load import load

ANNOTATED = """\
--------------------------------------------------------------------------------
Ir
--------------------------------------------------------------------------------
196,298,277 (100.0%)  PROGRAM TOTALS

--------------------------------------------------------------------------------
Ir                   file:function
--------------------------------------------------------------------------------
61,120,320 (31.14%)  ???:_PyEval_EvalFrameDefault'2 [/usr/lib/libpython3.11.so.1.0]
   320,000 ( 0.16%)  ???:_PyEval_EvalFrameDefault [/usr/lib/libpython3.11.so.1.0]
 3,632,320 ( 1.85%)  ./malloc/malloc.c:malloc [/usr/lib/libc.so.6]
"""


def test_functions_are_counted_by_request_with_the_calls_of_themselves():
    found = read_functions(ANNOTATED, 320)
    assert found == {"_PyEval_EvalFrameDefault": 192_001.0, "malloc": 11_351.0}


def test_every_feature_is_turned_off_by_settings_that_there_are(tmp_path):
    config = configured(tmp_path, 1, 2)
    before = yaml.safe_load(config.read_text())
    change(config, list(FEATURES.values()))
    off = load(config).config
    assert off.data_dir is None
    assert off.logging.level == "error"
    assert off.record.runs == "off"
    assert off.loop.diagnostics is False
    assert off.logging.format == before["logging"]["format"]
