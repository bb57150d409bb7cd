#!/bin/sh
# Build kube-apiserver and kube-scheduler from Debian's source and put them, with etcd, into .venv/kubernetes/bin:
# what `make test-kubernetes` starts. There are no binaries where this may download from. Debian 12 has the whole source
# of 1.20, later releases only that of kubectl. Takes 10 to 15 minutes on two cores, once, and 3 GB during the build.
set -eu
cd "$(dirname "$0")/.."

version=1.20.5+really1.20.2
source=pool/main/k/kubernetes/kubernetes_$version.orig.tar.gz
sum=b83c0780efb182d928dc63d46488a847f161f04e40a94b96bf5247dd671ecdfc
home=$PWD/.venv/kubernetes
src=$home/go/src/k8s.io/kubernetes

stop() { printf 'brimful: %s\n' "$*" >&2; exit 1; }

[ -x "$home/bin/kube-apiserver" ] && [ -x "$home/bin/kube-scheduler" ] && [ -x "$home/bin/etcd" ] && exit 0
command -v apt-get >/dev/null || stop "needs Debian's golang-1.19-go and etcd-server"
# From the mirror that this machine uses.
mirror=$(apt-get --print-uris download etcd-server | sed "s,^'\(.*\)/pool/.*,\1,") && [ -n "$mirror" ] ||
    stop "apt-get does not know etcd-server; run: apt-get update"
url=$mirror/$source
mkdir -p "$home/bin" "$src"

if [ ! -x "$home/bin/etcd" ]; then
    folder=$(mktemp -d)
    (cd "$folder" && apt-get download -qq etcd-server >/dev/null && dpkg-deb --extract etcd-server_*.deb .) ||
        stop "could not fetch Debian's etcd-server"
    mv "$folder/usr/bin/etcd" "$home/bin/"
    rm -rf "$folder"
fi

if [ ! -x /usr/lib/go-1.19/bin/go ]; then
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends golang-1.19-go >/dev/null ||
        stop "run as root: apt-get install golang-1.19-go"
fi
export PATH="/usr/lib/go-1.19/bin:$PATH" GOPATH="$home/go" GOCACHE="$home/cache"
export GO111MODULE=off CGO_ENABLED=0 GOPROXY=off

if [ ! -e "$src/go.mod" ]; then
    curl --silent --show-error --fail --output "$home/source.tar.gz" "$url" || stop "could not fetch $url"
    echo "$sum  $home/source.tar.gz" | sha256sum --check --quiet || stop "$url is not what it was"
    tar --extract --gzip --file "$home/source.tar.gz" --directory "$src" --strip-components=1
    rm "$home/source.tar.gz"
fi
cd "$src"

# Debian leaves generated code out; without this one the API server does not compile.
made=pkg/generated/openapi/zz_generated.openapi.go
if [ ! -s "$made" ]; then
    go build -o "$home/bin/openapi-gen" k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep --recursive --files-with-matches --include='*.go' '+k8s:openapi-gen=' staging/src/k8s.io pkg cmd |
        xargs --max-args=1 dirname | sort --unique |
        sed 's,^staging/src/,vendor/,; s,^,k8s.io/kubernetes/,' | paste --serial --delimiters=,)
    "$home/bin/openapi-gen" --output-file-base zz_generated.openapi --output-base "$GOPATH/src" \
        --go-header-file hack/boilerplate/boilerplate.generatego.txt --report-filename "$home/violations" \
        --input-dirs "$inputs" --output-package k8s.io/kubernetes/pkg/generated/openapi
fi

# The release's own build writes its version into both.
flags="-s -w"
for part in component-base/version client-go/pkg/version; do
    of=k8s.io/kubernetes/vendor/k8s.io/$part
    flags="$flags -X $of.gitVersion=v1.20.2 -X $of.gitMajor=1 -X $of.gitMinor=20"
done
for name in kube-scheduler kube-apiserver; do
    [ -x "$home/bin/$name" ] || nice go build -trimpath -ldflags "$flags" -o "$home/bin/" "k8s.io/kubernetes/cmd/$name"
done
rm -rf "$home/cache" "$home/go" "$home/bin/openapi-gen"
