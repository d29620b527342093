"""`python -m callgate.config.schema > config.schema.json`."""

import sys

from callgate.config.schema.editors import json_schema_text

sys.stdout.write(json_schema_text())
