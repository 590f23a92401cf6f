# The worker and enqueue in an image that holds nothing else: no shell, no package manager. It runs against DATABASE_URL and
# REDIS_URL; the embedded services need a system around them and are not for containers.
# It compiles on the machine's own architecture for each that is asked for.
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm@sha256:a688600ca24f8a4d3ca77f95b0dd40704a9fc787c826660eb7ba0b641b8b175d AS build
ARG TARGETOS=linux TARGETARCH
ENV CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOTOOLCHAIN=local
WORKDIR /src
COPY go.mod go.sum ./
COPY client/go.mod client/
COPY receiver/go.mod receiver/go.sum receiver/
RUN --mount=type=cache,target=/go/pkg/mod go mod download
COPY . .
# What --version says: git is not in here. docker build --build-arg VERSION=$(git describe --tags --always --dirty)
ARG VERSION=
RUN --mount=type=cache,target=/go/pkg/mod --mount=type=cache,target=/root/.cache/go-build \
    GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -ldflags="-s -w -X github.com/agentherald/herald/internal/base/buildinfo.stamp=$VERSION" -o /out/usr/local/bin/ ./cmd/worker ./cmd/enqueue ./scripts/readyz
# What a program expects of a system: users with names, certificates, time zones, a folder for temporary files.
RUN mkdir -p /out/etc/ssl/certs /out/usr/share /out/tmp \
 && printf 'root:x:0:0:root:/:/nonexistent\nherald:x:10001:10001:herald:/tmp:/nonexistent\n' >/out/etc/passwd \
 && printf 'root:x:0:\nherald:x:10001:\n' >/out/etc/group \
 && cp /etc/ssl/certs/ca-certificates.crt /out/etc/ssl/certs/ \
 && cp -r /usr/share/zoneinfo /out/usr/share/ \
 && chmod 1777 /out/tmp

FROM scratch
LABEL org.opencontainers.image.title="Herald" \
      org.opencontainers.image.description="Delivers ERC-8004 feedback to the agents it is about" \
      org.opencontainers.image.source="https://github.com/agentherald/herald" \
      org.opencontainers.image.licenses="MIT"
COPY --from=build /out/ /
ENV PATH=/usr/local/bin HOME=/tmp
USER 10001:10001
EXPOSE 8080
# /readyz by way of HERALD_LISTEN; a worker that waits for Postgres or Redis is not healthy and says why.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD ["readyz"]
# SIGTERM: no more tasks, running calls finish (HERALD_CALL_TIMEOUT and 15 s), so stop with a longer patience.
STOPSIGNAL SIGTERM
ENTRYPOINT ["worker"]
