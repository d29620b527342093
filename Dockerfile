# Three stages: the first has pip and the sources, the second only what runs, the third also what MCP servers are run with.
# The base is a name, not a digest, so that a rebuild takes the security fixes of its Debian; what is ours is locked.

FROM python:3.12-slim AS builder

# Two venvs build, the third is shipped and never holds pip.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/build && python -m venv /opt/image && python -m venv --without-pip /opt/callgate

COPY requirements-build.lock requirements-image.lock requirements.lock /src/
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/build/bin/pip install --quiet --require-hashes -r /src/requirements-build.lock \
 && /opt/image/bin/pip install --quiet --require-hashes -r /src/requirements-image.lock \
 && /opt/build/bin/pip --python /opt/callgate/bin/python install --quiet --no-compile --require-hashes \
        -r /src/requirements.lock

COPY pyproject.toml README.md LICENSE /src/
COPY app /src/app
# Bytecode is made here, since nothing can be written where it runs: without it a start takes twice as long. It is not
# compared with its source again; neither changes in an image.
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /src/dist /src \
 && /opt/build/bin/pip --python /opt/callgate/bin/python install --quiet --no-compile --no-deps --no-index /src/dist/*.whl \
 && /opt/callgate/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/callgate/lib

# What is in it, for scanners. And a folder for modules of Python tools, behind everything else on the path.
RUN /opt/image/bin/cyclonedx-py environment --output-reproducible --output-format JSON --output-file /opt/callgate/sbom.cdx.json \
        /opt/callgate/bin/python \
 && echo /tools > "$(/opt/callgate/bin/python -c 'import site; print(site.getsitepackages()[0])')/tools.pth"


FROM python:3.12-slim AS callgate

LABEL org.opencontainers.image.title="callgate" \
      org.opencontainers.image.description="An OpenAI-compatible proxy that runs your tools, and never runs half a call" \
      org.opencontainers.image.licenses="MIT"

COPY --from=builder /opt/callgate /opt/callgate

# A number, so that `runAsNonRoot` can be checked without reading /etc/passwd. The user owns /data and /keys, and nothing else.
RUN install -d -o 10001 -g 10001 -m 0750 /data /keys
USER 10001:10001
WORKDIR /data
VOLUME /data

# litellm would fetch its price map at import. HOME is where libraries that keep something may keep it.
ENV PATH=/opt/callgate/bin:$PATH \
    HOME=/data \
    PYTHONUNBUFFERED=1 \
    LITELLM_LOCAL_MODEL_COST_MAP=True \
    CALLGATE_HOST=0.0.0.0 \
    CALLGATE_PORT=8000

# On 0.0.0.0 Callgate starts only with `keys` in its config, or with `auth: off` written there. /data/config.yaml is
# read if it is there; CALLGATE_CONFIG names another file.
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 CMD ["callgate", "health"]
ENTRYPOINT ["callgate"]
CMD ["serve"]


# callgate:tools, for MCP servers that are started with npx or uvx.
FROM callgate AS tools
USER root
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends git nodejs npm \
 && rm -rf /var/lib/apt/lists/*
COPY --from=builder /opt/image/bin/uv /opt/image/bin/uvx /usr/local/bin/
USER 10001:10001


# The one that is built where no other is named.
FROM callgate
