# The demo of codinet in a container. It trains three small networks, in about two minutes on two cores, and prints where
# the report is:
#   docker build -t codinet .
#   docker run --name codinet-demo codinet && docker cp codinet-demo:/home/codinet/runs/demo/report .
# Other commands: docker run --rm codinet codinet --help
FROM python:3.12-slim

RUN useradd --create-home codinet
WORKDIR /home/codinet

# torch comes first, as in the Makefile: pinned, built for CPUs, and in a layer that outlives changes of the source.
ENV PIP_NO_CACHE_DIR=1 PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
COPY constraints.txt ./
RUN pip install --constraint constraints.txt torch

COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip install --constraint constraints.txt '.[plot,explore,onnx]'

USER codinet
CMD ["python", "-m", "codinet.demo", "--out", "runs/demo"]
