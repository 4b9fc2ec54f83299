# kgverify with its tests' judges, on a CPU: docker build -t kgverify . && docker run --rm kgverify diff --queries 20
FROM python:3.11-slim
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ git swi-prolog-nox chromium \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /kgverify
COPY . .
RUN pip install --no-cache-dir 'torch<2.14' --index-url https://download.pytorch.org/whl/cpu \
    && pip install --no-cache-dir -e '.[test]'
ENTRYPOINT ["kgverify"]
