"""`python -m app.config.schema > config.schema.json`."""

import sys

from app.config.schema.editors import json_schema_text

sys.stdout.write(json_schema_text())
