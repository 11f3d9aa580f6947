#!/bin/sh
# Installs the program oncegate of a release from the place where its files are.
#
#   sh install.sh https://downloads.example/oncegate-0.1.0            # into /usr/local/bin
#   PREFIX=$HOME/.local sh install.sh https://downloads.example/oncegate-0.1.0
#
# It checks the archive's SHA-256 by SHA256SUMS, and the signature of SHA256SUMS (SHA256SUMS.minisig) where minisign is installed and
# the public key is known: from the line below, which the release writes, or from ONCEGATE_PUBLIC_KEY. With that variable the signature
# must be there. The signature and the archive must be of one version: that of the line below, or ONCEGATE_VERSION, so that an older
# release does not pass for a newer one. Nothing is installed if a check fails.
set -eu
released_key=
released_version=
public_key=${ONCEGATE_PUBLIC_KEY:-$released_key}
version=${ONCEGATE_VERSION:-$released_version}
fail() {
    echo "install: $*" >&2
    exit 1
}
[ $# = 1 ] || fail "name the URL of the folder of the release"
url=${1%/}
case $url in https://* | file://*) ;; *) fail "$url: only https:// and file:// are taken" ;; esac
case $(uname -s)-$(uname -m) in
    Linux-x86_64) architecture=x86_64 ;;
    Linux-aarch64 | Linux-arm64) architecture=aarch64 ;;
    *) fail "there is no binary for $(uname -s) on $(uname -m)" ;;
esac
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
# wget has no option against a redirect to http://, so this follows redirects itself.
wget_https() {
    place=$2
    for _ in 1 2 3 4 5; do
        case $place in https://*) ;; *) return 1 ;; esac
        said=$(LC_ALL=C wget --server-response --max-redirect=0 --output-document "$1" "$place" 2>&1) && return
        place=$(echo "$said" | tr -d '\r' | sed -n 's/^ *[Ll]ocation: *\([^ ]*\).*/\1/p' | head -1)
    done
    return 1
}
download() {
    if command -v curl >/dev/null; then
        curl --fail --silent --show-error --location --proto-redir =https --output "$1" "$url/$1"
    else
        wget_https "$1" "$url/$1"
    fi || fail "$url/$1 cannot be had"
}

download SHA256SUMS
if [ -z "$public_key" ]; then
    echo "install: the signature is NOT checked: no public key" >&2
elif command -v minisign >/dev/null; then
    download SHA256SUMS.minisig
    signed=$(minisign -VQm SHA256SUMS -P "$public_key") || fail "the signature of SHA256SUMS is wrong"
    version=${version:-${signed#oncegate }}
    [ "$signed" = "oncegate $version" ] || fail "the signature is not of oncegate $version, but says '$signed'"
elif [ -n "${ONCEGATE_PUBLIC_KEY:-}" ]; then
    fail "minisign is not installed, so the signature cannot be checked"
else
    echo "install: the signature is NOT checked: minisign is not installed" >&2
fi
archive=$(sed -n "s/^[0-9a-f]\{64\}  \(oncegate-[0-9A-Za-z.+-]*-$architecture-linux-musl\.tar\.gz\)$/\1/p" SHA256SUMS)
[ "$(echo "$archive" | wc -w)" = 1 ] || fail "SHA256SUMS does not name one archive for $architecture"
[ -z "$version" ] || [ "$archive" = "oncegate-$version-$architecture-linux-musl.tar.gz" ] ||
    fail "$archive is not of version $version"
download "$archive"
grep "  $archive\$" SHA256SUMS | sha256sum --check --quiet >&2 || fail "$archive is not the released one"
tar -xzf "$archive"
install -D -m 755 "${archive%.tar.gz}/oncegate" "${PREFIX:-/usr/local}/bin/oncegate"
"${PREFIX:-/usr/local}/bin/oncegate" --version
