# Two stages: the first has pip and the sources, the second only what runs.
# The base is a name, not a digest, so that a rebuild takes the security fixes of its Debian; what is ours is locked.

FROM python:3.12-slim AS builder

# One venv builds, the other is shipped and never holds pip.
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/build && python -m venv --without-pip /opt/callgate

COPY requirements-build.lock requirements.lock /src/
RUN --mount=type=cache,target=/root/.cache/pip \
    /opt/build/bin/pip install --quiet --require-hashes -r /src/requirements-build.lock \
 && /opt/build/bin/pip --python /opt/callgate/bin/python install --quiet --no-compile --require-hashes \
        -r /src/requirements.lock

COPY pyproject.toml README.md LICENSE /src/
COPY app /src/app
# Bytecode is made here, since nothing can be written where it runs: without it a start takes twice as long. It is not
# compared with its source again; neither changes in an image.
RUN /opt/build/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /src/dist /src \
 && /opt/build/bin/pip --python /opt/callgate/bin/python install --quiet --no-compile --no-deps --no-index /src/dist/*.whl \
 && /opt/callgate/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/callgate/lib


FROM python:3.12-slim

LABEL org.opencontainers.image.title="callgate" \
      org.opencontainers.image.description="An OpenAI-compatible proxy that runs your tools, and never runs half a call" \
      org.opencontainers.image.licenses="MIT"

COPY --from=builder /opt/callgate /opt/callgate

# A number, so that `runAsNonRoot` can be checked without reading /etc/passwd. The user owns /data and nothing else.
RUN install -d -o 10001 -g 10001 -m 0750 /data
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
