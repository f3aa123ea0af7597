# `make help` lists the targets. Everything is built in cargo's dev profile, so that dependencies
# compile once for the build, clippy, the tests and the demo.

CARGO ?= cargo
DEMO_OUT ?= demo-out
PREFIX ?= /usr/local
TARGET ?= all
SECONDS ?= 60
QUIET_SERVERS ?= 12
QUIET_SECONDS ?= 3000
SOAK_SECONDS ?= 3600
SEEDS ?= 100000
SPARK ?= 4.3.0
STATSD_EXPORTER ?= v0.31.0
# Released binaries and tests have these features; a plain build of the source does not.
FULL = --features howdah/full
CASES ?= 20000

.DEFAULT_GOAL := help
.PHONY: help setup demo install dist sign check-dist helm advisories test lint fmt fuzz explore simulate failover restarts takeovers quiet bench compat statsd-clients doc receivers soak book spark

help: ## List the targets.
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 18

setup: ## Install what building and testing need (Debian, by apt).
	@scripts/setup

# A released or installed binary is used if there is one; otherwise one is built.
demo: ## Rehearse a dropped index on throw-away servers and name the query that gets slower; report in demo-out/.
	@if [ -x target/release/howdah ]; then target/release/howdah demo --output $(DEMO_OUT); \
	elif command -v howdah >/dev/null; then howdah demo --output $(DEMO_OUT); \
	else scripts/setup demo && $(CARGO) build --package howdah && target/debug/howdah demo --output $(DEMO_OUT); fi

install: ## Build with optimisation and install into PREFIX (/usr/local): command, manual pages, completions.
	@scripts/setup full
	$(CARGO) build --release --package howdah $(FULL)
	scripts/install target/release/howdah "$(DESTDIR)$(PREFIX)"

dist: ## Build packages, container image, checksums and signature into target/packages (Debian 12 or newer).
	@scripts/setup full
	scripts/dist

sign: ## Sign the packages in target/packages again, with the minisign key in HOWDAH_SIGNING_KEY.
	scripts/sign-dist

check-dist: ## Try the packages and the image: in an empty Debian, and in a container (needs root).
	scripts/check-dist

helm: ## Lint and render the Helm chart, and check it against the types of Kubernetes (needs Go).
	$(CARGO) build --package howdah
	scripts/check-helm

advisories: ## Look up the dependencies in the RustSec database, which is downloaded first.
	$(CARGO) deny --log-level error check advisories

# The tests come last, so that their summary ends the log; those of the pooler again on other versions of PostgreSQL. Property tests use the same cases in each run, so that
# a commit either passes or fails; `make explore` tries others.
test: setup lint ## What CI runs: format, clippy, docs, then every test.
	PROPTEST_RNG_SEED=1 scripts/run-tests
	scripts/test-pool-majors

lint: ## Format check, banned words, licences, the book, clippy and rustdoc, each without a warning.
	$(CARGO) fmt --all --check
	scripts/check-words
	$(CARGO) deny --log-level error check --hide-inclusion-graph licenses bans sources
	mdbook build docs --dest-dir target/book
	$(CARGO) clippy --workspace --all-targets $(FULL) -- -D warnings
	$(CARGO) clippy --package howdah -- -D warnings
	$(CARGO) clippy --package howdah-statsd --features kafka --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --quiet $(FULL)

fmt: ## Format the code.
	$(CARGO) fmt --all

fuzz: ## Fuzz the parsers, or one: make fuzz TARGET=sql SECONDS=600.
	scripts/fuzz $(TARGET) $(SECONDS)

explore: ## Run the property tests with new random cases: make explore CASES=20000.
	PROPTEST_CASES=$(CASES) $(CARGO) test --workspace --lib --no-fail-fast $(FULL)

simulate: ## Simulate the pooler under random faults, and check that known bugs are found: make simulate SEEDS=100000.
	HOWDAH_POOL_SEEDS=$(SEEDS) $(CARGO) test --package howdah-pool-core --lib sim:: -- --nocapture

failover: setup ## Kill a primary, promote its standby and start the old primary again behind a pooler, 20 times with different pauses.
	HOWDAH_FAILOVER_RUNS=20 $(CARGO) test --package howdah-pool --test it -- failovers_lose_nothing --nocapture

restarts: setup ## Replace the pooler, restart the server and fail over under 200 clients with each authentication.
	HOWDAH_RESTARTS_CLIENTS=200 $(CARGO) test --package howdah-pool --test it -- restarts:: --nocapture --test-threads 1

takeovers: ## Replace `howdah statsd` ten times while 100,000 packets per second arrive for 100,000 keys.
	HOWDAH_TAKEOVER_RATE=100000 HOWDAH_TAKEOVER_KEYS=100000 $(CARGO) test --package howdah $(FULL) --test it -- ten_takeovers --nocapture

# 12 servers for 50 minutes are 600 quiet minutes.
quiet: setup ## Record ordinary loads for 600 minutes of servers; fail if a report has a headline: make quiet QUIET_SERVERS=4 QUIET_SECONDS=120.
	HOWDAH_QUIET_SERVERS=$(QUIET_SERVERS) HOWDAH_QUIET_SECONDS=$(QUIET_SECONDS) $(CARGO) test --package howdah-probe --test it -- quiet:: --nocapture

soak: setup ## Run all services together for an hour while servers and services fail: make soak SOAK_SECONDS=3600.
	HOWDAH_SOAK_SECONDS=$(SOAK_SECONDS) $(CARGO) test --workspace $(FULL) --test it -- soak:: --nocapture

compat: ## Run drivers of other languages through the pooler, on PostgreSQL 15 and 18, and replay captures and logs.
	compat/run
	compat/run --replay --replay-logs

statsd-clients: ## Run statsd clients of six languages against the statsd server.
	$(CARGO) build --package howdah $(FULL)
	compat/statsd/run

receivers: setup ## Install an OpenTelemetry collector, statsd_exporter (needs Go) and Kafka (needs Maven, Java 17), and run the tests of statsd and of exported metrics against every receiver and server.
	mkdir -p target/tools/receivers/usr/bin
	cd scripts/otel-receiver && go build -trimpath -ldflags="-s -w" -o ../../target/tools/receivers/usr/bin/otel-receiver .
	GOBIN=$(CURDIR)/target/tools/receivers/usr/bin go install github.com/prometheus/statsd_exporter@$(STATSD_EXPORTER)
	mvn --quiet --batch-mode -f scripts/kafka-receiver/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory=$(CURDIR)/target/tools/receivers/usr/share/kafka
	HOWDAH_RECEIVERS_REQUIRED=1 $(CARGO) test --package howdah-statsd --features kafka --test receivers --test reference_servers
	HOWDAH_RECEIVERS_REQUIRED=1 $(CARGO) test --workspace $(FULL) --test it -- monitoring::collector

# Tests of the same name use DuckDB in `make test`: Spark takes 600 MB and minutes.
spark: setup ## Install Spark (needs Java 17 or newer) and compare runs on it: figures must equal those of howdah compare.
	[ -x target/tools/spark/bin/spark-submit ] || { python3 -m venv target/tools/spark && \
		target/tools/spark/bin/python -m pip install --quiet --disable-pip-version-check pyspark==$(SPARK); }
	HOWDAH_TEST_SPARK=1 $(CARGO) test --package howdah $(FULL) --test it -- spark:: --test-threads 1

bench: ## List the benchmarks and how to run each.
	@cat bench/README.md

book: ## Build the book, with its search, in target/book: static files for any web server.
	@scripts/setup book
	mdbook build docs --dest-dir target/book

doc: setup ## Build the API documentation and the book, in target/doc and target/book.
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps $(FULL)
	mdbook build docs --dest-dir target/book
