# shellcheck shell=sh
# The part that the recipes' scripts share. Each `try` sources it, and ends all that it has started, however it ends.
#
#   ONCEGATE         the program: by default the one in target/debug, else `oncegate` on the path
#   RECIPES_PYTHON   the Python with the packages of requirements.txt: by default target/recipes/bin/python, else python3
#
# A recipe that lacks a package says so and exits with 77.
set -eu
recipes=$(cd "$(dirname "$0")/.." && pwd)
recipe=$(cd "$(dirname "$0")" && pwd)
name=${recipe##*/}
built=${CARGO_TARGET_DIR:-$recipes/../../target}
oncegate=${ONCEGATE:-$built/debug/oncegate}
[ -x "$oncegate" ] || oncegate=oncegate
python=${RECIPES_PYTHON:-$built/recipes/bin/python}
[ -x "$python" ] || python=python3
export PYTHONPATH="$recipes/shared" PYTHONDONTWRITEBYTECODE=1
seconds_max=30
config=$recipe/oncegate.toml
folder=$(mktemp -d)
service=
proxy=
link_process=
end() {
    for pid in $link_process $proxy $service; do
        kill "$pid" 2>/dev/null || true
        wait "$pid" 2>/dev/null || true
    done
    rm -rf "$folder"
}
trap end EXIT
trap 'exit 130' INT TERM

fail() {
    {
        echo "$name: $*"
        cat "$folder/answer" "$folder/service.log" 2>/dev/null || true
        tail -n 20 "$folder/oncegate.log" 2>/dev/null || true
    } >&2
    exit 1
}

# need MODULE: ends the script with 77 if Python does not have this module.
need() {
    # In an empty folder: Python takes the recipes' own folders for modules.
    (cd "$folder" && "$python" -c "import $1" 2>/dev/null) && return
    echo "$name: skipped, Python has no module $1 (pip install -r examples/recipes/requirements.txt)" >&2
    exit 77
}

# need_node PACKAGE: ends the script with 77 if Node does not have this package.
need_node() {
    (cd "$recipes" && node -e "import('$1').catch(() => process.exit(1))" 2>/dev/null) && return
    echo "$name: skipped, Node has no package $1 (npm ci --prefix examples/recipes)" >&2
    exit 77
}

# start_service: runs service.py of the recipe, which prints its port. Sets $upstream, its host and port.
start_service() {
    mkfifo "$folder/port"
    "$python" "$recipe/service.py" >"$folder/port" 2>"$folder/service.log" &
    service=$!
    read -r port <"$folder/port" || fail "the service has not started"
    upstream=127.0.0.1:$port
}

# start_oncegate SCHEME: runs the recipe's configuration before the service on a free port. Sets $address and $url.
start_oncegate() {
    : >"$folder/oncegate.log"
    "$oncegate" run -c "$config" --upstream "$1://$upstream" --listen 127.0.0.1:0 --admin 127.0.0.1:0 \
        --store "sqlite:$folder/oncegate.db" 2>"$folder/oncegate.log" &
    proxy=$!
    tries=0
    until address=$(sed -n 's/.*"message":"ready","listen":"\([^"]*\)".*/\1/p' "$folder/oncegate.log") && [ -n "$address" ]; do
        kill -0 "$proxy" 2>/dev/null || fail "Oncegate has not started"
        tries=$((tries + 1))
        [ "$tries" -lt $((seconds_max * 10)) ] || fail "Oncegate is not ready after $seconds_max s"
        sleep 0.1
    done
    # shellcheck disable=SC2034 # for the recipe
    url=http://$address
}

# start_link ADDRESS NUMBER...: runs shared/cut_link.py in the place of the one before. Sets $link, its host and port.
start_link() {
    [ -z "$link_process" ] || { kill "$link_process" && wait "$link_process"; } 2>/dev/null || true
    rm -f "$folder/link"
    mkfifo "$folder/link"
    "$python" "$recipes/shared/cut_link.py" "$@" >"$folder/link" &
    link_process=$!
    read -r port <"$folder/link" || fail "the link has not started"
    # shellcheck disable=SC2034 # for the recipe
    link=127.0.0.1:$port
}

# ask ARGUMENTS: sends a request with curl, and keeps status, fields and body.
ask() {
    curl -sS -i --max-time "$seconds_max" "$@" >"$folder/answer" || fail "curl $*"
}

# expect STATUS TEXT...: the last answer has this status, and each text in its fields or its body.
expect() {
    # The last status line: a `100 Continue` may come first.
    status=$(sed -n 's/^HTTP\/[0-9.]* \([0-9]*\).*/\1/p' "$folder/answer" | tail -n 1)
    [ "$status" = "$1" ] || fail "$status instead of $1"
    shift
    for text in "$@"; do grep -qiF -- "$text" "$folder/answer" || fail "the answer has no $text"; done
}

# lack TEXT: the last answer does not have this text.
lack() {
    ! grep -qiF -- "$1" "$folder/answer" || fail "the answer has $1"
}

# executions NUMBER: the service has executed so many requests.
executions() {
    counted=$(curl -sS "http://$upstream/executions")
    [ "$counted" = "$1" ] || fail "$counted executions instead of $1"
}
