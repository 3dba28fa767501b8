# ramerge merge /models/merge.yml --out /models/merged:
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/models" -w /models ramerge merge merge.yml --out merged
FROM python:3.11-slim AS build
COPY pyproject.toml README.md LICENSE /src/
COPY src /src/src
RUN python -m venv --without-pip /opt/ramerge \
    && pip --python /opt/ramerge/bin/python install --no-cache-dir /src

FROM python:3.11-slim
COPY --from=build /opt/ramerge /opt/ramerge
# Compiled kernels are cached in a place that any user may write to.
ENV PATH=/opt/ramerge/bin:$PATH \
    NUMBA_CACHE_DIR=/tmp/numba \
    HF_HOME=/tmp/huggingface
RUN useradd --create-home --uid 1000 ramerge
USER 1000
WORKDIR /home/ramerge
ENTRYPOINT ["ramerge"]
CMD ["--help"]
