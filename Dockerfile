# syntax=docker/dockerfile:1
# One static binary and the authorities that it trusts, nothing else: no shell, no package manager, no writable file.
#
#   docker build -t oncegate .
#   docker run --rm --read-only --cap-drop ALL -p 8080:8080 \
#       -v "$PWD/config:/etc/oncegate:ro" oncegate
#
# A release also says where it comes from:
#
#   docker build -t oncegate --build-arg SOURCE=https://git.example/oncegate --build-arg REVISION="$(git rev-parse HEAD)" \
#       --build-arg CREATED="$(git log -1 --format=%cI)" .

# Both can be replaced by a digest or by a mirror: --build-arg RUST_IMAGE=...
ARG RUST_IMAGE=docker.io/library/rust:1.95-bookworm

FROM ${RUST_IMAGE} AS build
# production, or dev for a build that is quick and slow to run.
ARG PROFILE=production
WORKDIR /src
# glibc, linked in: the allocator of musl is slow with several threads, and a base image brings packages to watch.
# An explicit --target keeps it from procedural macros, which must be loaded by the compiler.
ENV RUSTFLAGS="-C target-feature=+crt-static"
COPY . .
# The caches keep what is built of the dependencies.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cargo build --locked --profile "$PROFILE" --target "$(rustc --print host-tuple)" \
    && mkdir -p /image/etc/ssl/certs /image/etc/oncegate /image/var/lib/oncegate \
    && case "$PROFILE" in dev) folder=debug ;; *) folder=$PROFILE ;; esac \
    && install -m 0755 target/*/"$folder"/oncegate /image/oncegate \
    && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
    && install -D -m 0644 config/oncegate.schema.json /image/usr/share/oncegate/oncegate.schema.json \
    && echo 'oncegate:x:65532:65532:oncegate:/:/sbin/nologin' >/image/etc/passwd \
    && echo 'oncegate:x:65532:' >/image/etc/group \
    && chown 65532:65532 /image/var/lib/oncegate

FROM scratch
ARG VERSION=0.1.0
# The repository's URL, the commit, and the time of the commit as in RFC 3339. The time of the build would differ for equal images.
ARG SOURCE=
ARG REVISION=
ARG CREATED=
LABEL org.opencontainers.image.title="oncegate" \
      org.opencontainers.image.description="A reverse proxy that makes an HTTP service's state-changing requests safe to retry" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.source="$SOURCE" \
      org.opencontainers.image.revision="$REVISION" \
      org.opencontainers.image.created="$CREATED"
COPY --from=build /image /
# Read by oncegate itself for every command: `docker exec proxy /oncegate keys list` needs no -c. Containers are reached from
# outside of themselves, so it listens on every interface; the operators' listener stays on loopback unless the file
# says otherwise. There is no /tmp: `docker run --rm oncegate demo` keeps its files where the embedded store is.
ENV ONCEGATE_CONFIG=/etc/oncegate/oncegate.toml \
    ONCEGATE_LISTEN=0.0.0.0:8080 \
    TMPDIR=/var/lib/oncegate
# A number, so that Kubernetes can see that it is not root.
USER 65532:65532
# The embedded store, where one is used: mount a volume here.
WORKDIR /var/lib/oncegate
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=10s --retries=3 CMD ["/oncegate", "healthcheck"]
ENTRYPOINT ["/oncegate"]
CMD ["run"]
