"""Reads bodies of requests to `/v1/traces`, one in hexadecimal digits a line, with the package that OpenTelemetry makes of its
protocol, and writes each as JSON."""

import json
import sys

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

for line in sys.stdin:
    request = ExportTraceServiceRequest.FromString(bytes.fromhex(line.strip()))
    sys.stdout.write(json.dumps(MessageToDict(request)) + "\n")
