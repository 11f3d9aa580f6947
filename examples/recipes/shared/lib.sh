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
proxy=
services=
end() {
    for pid in $proxy $services; do
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

# choose_runtime SCRIPT: sets $runtime, the program that runs it.
choose_runtime() {
    case $1 in
        *.mjs) runtime=node ;;
        *) runtime=$python ;;
    esac
}

# start SCRIPT ARGUMENT...: runs a script that prints its port. Sets $started, its host and port.
start() {
    rm -f "$folder/port"
    mkfifo "$folder/port"
    choose_runtime "$1"
    "$runtime" "$@" >"$folder/port" 2>>"$folder/service.log" &
    services="$! $services"
    read -r port <"$folder/port" || fail "$1 has not started"
    started=127.0.0.1:$port
}

# start_service: runs service.py or service.mjs of the recipe. Sets $upstream, its host and port.
start_service() {
    start "$recipe"/service.*
    upstream=$started
}

# start_link ADDRESS CUT...: runs shared/cut_link.py. Sets $link, its host and port.
start_link() {
    start "$recipes/shared/cut_link.py" "$@"
    # shellcheck disable=SC2034 # for the recipe
    link=$started
}

# run_client ADDRESS CUTS ARGUMENT...: runs client.py or client.mjs of the recipe with the URL of a link that has these cuts, and with the
# arguments. Keeps the lines that it prints.
run_client() {
    # shellcheck disable=SC2086 # one argument for each cut
    start_link "$1" $2
    shift 2
    set -- "$recipe"/client.* "http://$link" "$@"
    choose_runtime "$1"
    "$runtime" "$@" >"$folder/answer" 2>&1 || fail "the client"
}

# printed LINE...: the client has printed these lines.
printed() {
    printf '%s\n' "$@" | cmp -s - "$folder/answer" || fail "not as expected: $*"
}

# start_oncegate SCHEME: runs the recipe's configuration on a free port, before $upstream where that is set. Sets $address and $url.
start_oncegate() {
    : >"$folder/oncegate.log"
    "$oncegate" run -c "$config" ${upstream:+--upstream "$1://$upstream"} --listen 127.0.0.1:0 --admin 127.0.0.1:0 \
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

# count ADDRESS: prints how many requests the service there has executed.
count() {
    curl -sS "http://$1/executions"
}

# executions NUMBER: the service has executed so many requests.
executions() {
    counted=$(count "$upstream")
    [ "$counted" = "$1" ] || fail "$counted executions instead of $1"
}
