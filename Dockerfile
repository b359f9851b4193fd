# Two images of one source: `docker build --target service .` and `docker build --target worker .`
# The service has no JVM and no Spark; the worker has no database layer and no web framework.

ARG PYTHON_IMAGE=python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1
RUN groupadd --system --gid 10001 tidefill \
    && useradd --system --uid 10001 --gid tidefill --home-dir /var/lib/tidefill --create-home --shell /usr/sbin/nologin tidefill
WORKDIR /opt/tidefill

# The wheel is built apart, so that no build tool and no test ends up in an image.
FROM base AS wheel
RUN pip install build==1.3.0
COPY pyproject.toml README.md LICENSE ./
COPY service ./service
COPY workers ./workers
COPY migrations ./migrations
RUN python -m build --wheel --outdir /wheels

FROM base AS service
COPY .requirements/service.txt ./requirements.txt
RUN pip install --requirement requirements.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl
USER 10001:10001
WORKDIR /var/lib/tidefill
ENV TIDEFILL_HOST=0.0.0.0 \
    TIDEFILL_LAUNCHER=none \
    TIDEFILL_LOG_FORMAT=json
EXPOSE 8700
ENTRYPOINT ["tidefill"]
CMD ["serve"]

FROM base AS worker
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
COPY .requirements/workers.txt ./requirements.txt
RUN pip install --requirement requirements.txt
COPY --from=wheel /wheels /wheels
RUN pip install --no-deps /wheels/*.whl
# Laid out once, the classes of Spark are mapped at each start instead of loaded.
RUN python -m workers.preparation
USER 10001:10001
WORKDIR /var/lib/tidefill
ENTRYPOINT ["python", "-m", "workers"]
