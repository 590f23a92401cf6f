# Herald. `make` alone lists what there is.

GO        ?= go
# Options of `make demo`, as in ARGS=--once.
ARGS      ?=
# How long `make fuzz` tries each target.
FUZZTIME  ?= 60s
# Which benchmarks `make benchmarks` runs.
BENCH     ?= .
# How many histories `make soak` plays, and which rows `make chaos` breaks.
HISTORIES ?= 10000
CHAOS     ?= .
# The commit that bench-turns compares with, each TURNS times.
BEFORE    ?=
TURNS     ?= 5
# Which packages test, race, lint, fuzz and bench look at.
PKG       ?= ./...
# Modules of their own, for the authors of agents and indexers. make receiver tests them, and lint reads them too.
MODULES   := receiver client examples/agent-sqlite
# go runs packages in the order in which they are named. The trials, whose tests run one after another, start beside packages
# that wait more than they compute. Then what takes longest follows.
FIRST     := ./internal/testing/trial ./internal/mcpcall ./internal/door/server/api ./internal/delivery ./internal/testing/doctest ./internal/store ./cmd/worker ./internal/app ./internal/store/records ./internal/testing/storetest ./internal/base/embedded ./internal/chain/follower
# Packages in whose own tests the race detector finds nothing: they run programs that are built without it, start no goroutine and
# have no lock, or are kits that the tests of others run. Or their one lock is held in the tests of delivery and app, where the
# detector watches it. So are the ledger's statements.
UNRACED   := /(cmd|examples|scripts|migrations)(/|$$)|/internal/(testing/(trial|doctest|conformance|storetest|devnet|heraldtest|oauthtest)|erc8004|job|base/(text|decode|strictjson|buildinfo|loop|netguard|progress|reload|secret|tracecontext|tracing)|outcome|app/backend|chain/(eventlog|follower)|delivery/(classify|content|event|memory|tools|waits)|door/(legacy|server/pages)|operator/(alerts|config|doctor|inspect|keys|report)|resolver/servers|store/(records|retention|storable)|(chain|store)$$)(/|$$)
# Tests that measure bytes or steps, or send one hostile text, one question to Postgres or one hour of a clock after another, or that
# call a program that they build: under the race detector they would take a third of the time, and prove nothing.
RACELESS  := ^(TestPoolHoldsSoManyBytes|TestMarkedToolsAreKeptOnce|TestClientsInUseHoldSoManyBytes|TestWalkerStops|TestHistoriesOnPostgres|TestModelIsPostgres|TestExampleAgent|TestClientExample|TestDocumentedClient|TestPoison|TestRotation|TestHostileRecords|TestFitIsBounded)$$
# Where no line has more than 120 columns. A struct tag may, because it has to stay on one line.
WRAPPED   := client cmd internal receiver
# How many packages test builds and runs at a time: one more than the cores.
ATONCE    ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN || echo 2) + 1 )))
# Where test and race append "passed failed skipped" for scripts; empty: nowhere.
TOTALS    ?=

# The compiler takes seven eighths of the time without debug information, which no link step keeps, and a tenth less again if it
# collects garbage from 512 MiB on instead of 128. A process of it may need that much memory, two or three run at a time.
COMPILE   := -dwarf=false -d=gcstart=512
# One set of build flags everywhere, so that nothing is compiled twice. Without the folder's name (-trimpath), a second clone
# compiles nothing again. A checkout of another user builds too (-buildvcs=false).
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false -trimpath '-gcflags=all=$(COMPILE)')
# No program needs cgo: without it, Go's own linker is enough, and each of the seventy test programs links in three quarters of the time.
export CGO_ENABLED := 0
# What --version says: the tag, the commits since, the commit, and -dirty; nothing where git does not serve this checkout.
VERSION   ?= $(shell git describe --tags --always --dirty 2>/dev/null)
# Without debug information a program links in half the time. Stack traces keep their lines. The version changes the link step alone.
LDFLAGS   := -s -w -X github.com/agentherald/herald/internal/base/buildinfo.stamp=$(VERSION)
LINK      := -ldflags='$(LDFLAGS)'
# Pinned tools, in a module of their own (tools/go.mod).
TOOL      := $(GO) tool -modfile=tools/go.mod

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

.PHONY: help
help: ## List what make can do here.
	@awk -F ':.*## ' '/^##@ / {print substr($$0, 5)} /^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

##@ Programs

.PHONY: build
build: ## Build bin/worker, bin/enqueue, bin/demo and bin/agent.
	$(GO) build $(LINK) -o bin/ ./cmd/worker ./cmd/enqueue ./cmd/demo ./examples/agent

# The demo runs the worker inside itself. Only who stays to look around needs the commands of operators and indexers.
.PHONY: demo
demo: ## Show everything on this machine, nothing installed. ARGS=--once exits after its stories.
	@echo 'Compiling bin/demo and bin/agent$(if $(findstring --once,$(ARGS)),,, bin/worker and bin/enqueue): minutes the first time, seconds when little has changed.'
	$(GO) build $(LINK) -o bin/ ./cmd/demo ./examples/agent $(if $(findstring --once,$(ARGS)),,./cmd/worker ./cmd/enqueue)
	bin/demo $(ARGS)

# Programs that need nothing of the system that they run on. The same commit gives the same bytes.
DIST      := herald-$(or $(VERSION),devel)
DIST_TIME  = $(or $(shell git log -1 --format=%ct 2>/dev/null),0)

.PHONY: dist
dist: ## Build dist/: worker and enqueue as static binaries for linux/amd64 and linux/arm64, with checksums and a CycloneDX SBOM.
	rm -rf dist && mkdir -p dist
	for arch in amd64 arm64; do \
		out=dist/$(DIST)-linux-$$arch; \
		GOOS=linux GOARCH=$$arch $(GO) build -trimpath $(LINK) -o $$out/bin/ ./cmd/worker ./cmd/enqueue; \
		$(GO) run ./scripts/sbom -version '$(or $(VERSION),devel)' $$out/bin/worker $$out/bin/enqueue >$$out.cdx.json; \
		cp LICENSE README.md CHANGELOG.md $$out/; \
		tar -C dist --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime=@$(DIST_TIME) -c $$(basename $$out) | gzip -n9 >$$out.tar.gz; \
		rm -r $$out; \
	done
	cd dist && sha256sum *.tar.gz *.cdx.json | tee SHA256SUMS

.PHONY: image
image: ## Build dist/ as an OCI image of both architectures (needs docker with buildx, and the network).
	mkdir -p dist
	docker buildx build --platform=linux/amd64,linux/arm64 --build-arg=VERSION=$(VERSION) --output=type=oci,dest=dist/$(DIST)-oci.tar .

.PHONY: screenshot
screenshot: ## Take docs/web-ui.png and docs/overview.png from the running demo, in a real browser (needs chromium: apt-get install chromium).
	$(GO) build $(LINK) -o bin/ ./cmd/demo ./examples/agent
	$(GO) run ./scripts/screenshot -demo bin/demo -o docs

##@ Checks

# Postgres, Redis and PgBouncer are fetched into a cache when the machine has none; the system is not changed. devnode is the
# chain of the tests.
.PHONY: services
services: build ## Fetch what the embedded Postgres and Redis and the tests need, if this machine lacks it.
	$(GO) build $(LINK) -o bin/ ./internal/testing/devnet/devnode
	bin/worker embedded fetch
	[ "$$(uname)" != Linux ] || scripts/debian-program pgbouncer pgbouncer --version >/dev/null

# Linking the programs and the seventy test programs takes two fifths of a warm run. With -o, go keeps them in bin/, and links
# only those whose parts have changed. A run without failure leaves them beside the build cache too (KEPT), from where another
# clone takes them.
KEPT       = $(shell $(GO) env GOCACHE)/herald-bin
.PHONY: kept
kept:
	@mkdir -p bin/tests '$(KEPT)' && (cp -rln '$(KEPT)/.' bin/ || cp -rn '$(KEPT)/.' bin/) 2>/dev/null || true

# Tests that run the programs take those in bin/, which this target has just built (TRIAL_BUILT).
# The checks of vet are in make lint: inside `go test` they would read every dependency once more, half a minute with an empty build cache. One
# package more than there are cores at a time, since some only wait. Tests collect garbage a quarter as often (GOGC); the compiler, which
# chooses its own heap, would need a tenth longer with that setting.
.PHONY: test
test: kept services ## Run all tests, on real Postgres and Redis. Nothing may skip.
	TRIAL_BUILT=1 HERALD_REQUIRE_SERVICES=1 $(GO) test -exec='env GOGC=400' -o bin/tests/ -ldflags='-s -w' -p=$(ATONCE) -count=1 -vet=off -timeout=20m -json $(if $(filter ./...,$(PKG)),$(FIRST)) $(PKG) | $(GO) run ./scripts/testcount -noskip -most=60s $(if $(TOTALS),-totals=$(TOTALS))
	@for kept in tests worker enqueue demo agent devnode; do cp -rlf bin/$$kept '$(KEPT)/' 2>/dev/null || true; done

# Without inlining, what is not the standard library compiles for the race detector in seven tenths of the time. The C parts of
# dependencies, of which only test transactions need one, compile in a third of the time without optimization.
.PHONY: race
race: services ## Run the tests of concurrent code under the race detector (needs a C compiler).
	TRIAL_BUILT=1 CGO_ENABLED=1 CGO_CFLAGS=-O0 HERALD_REQUIRE_SERVICES=1 $(GO) test -exec='env GOGC=400' -race -gcflags='all=$(COMPILE) -l' -gcflags='std=$(COMPILE)' -ldflags='-s -w' -skip='$(RACELESS)' -p=$(ATONCE) -vet=off -timeout=40m -json $$($(GO) list $(if $(filter ./...,$(PKG)),$(FIRST)) $(PKG) | grep -vE '$(UNRACED)') | $(GO) run ./scripts/testcount -noskip $(if $(TOTALS),-totals=$(TOTALS))
	CGO_ENABLED=1 CGO_CFLAGS=-O0 $(GO) -C receiver test -race -vet=off -timeout=5m ./...

.PHONY: receiver
receiver: ## Test the Go receiver for agents' authors, its example and the client, which are modules of their own.
	for m in $(MODULES); do $(GO) -C $$m test -vet=off -timeout=5m ./...; done

.PHONY: format
format: ## Look for files that gofmt would change, and for lines of the product above 120 columns.
	@unformatted=$$(gofmt -l client cmd examples internal migrations receiver scripts tools); \
	if [ -n "$$unformatted" ]; then printf 'gofmt would change:\n%s\n' "$$unformatted"; exit 1; fi
	@long=$$(find $(WRAPPED) -name '*.go' ! -name '*_test.go' ! -path 'internal/testing/*' | sort | while read -r f; do \
		expand -t4 "$$f" | LC_ALL=C.UTF-8 grep -nE '^.{121,}' | grep -vE '[a-z]:"[^`]*`$$' | sed "s|:.*||; s|^|$$f:|"; done || true); \
	if [ -n "$$long" ]; then printf 'longer than 120 columns (tabs count as 4):\n%s\n' "$$long"; exit 1; fi

.PHONY: lint
lint: ## Look for mistakes with the checks of go vet and of staticcheck (the first run downloads and compiles them).
	$(GO) -C tools build -ldflags='-s -w' -o '$(CURDIR)/bin/lint' ./lint
	bin/lint $(PKG)
	for m in $(MODULES); do (cd $$m && '$(CURDIR)/bin/lint' ./...); done

.PHONY: words
words: ## Check the share of sentences in comments and Markdown that are hard to read.
	$(GO) run ./scripts/plainwords

# promtool is the machine's, or fetched into the cache from Debian's package.
.PHONY: alerts
alerts: ## Hold the rules of deploy/prometheus against their tests, with promtool.
	scripts/debian-program prometheus promtool check rules deploy/prometheus/rules.yml deploy/prometheus/legacy.yml
	scripts/debian-program prometheus promtool test rules deploy/prometheus/rules_test.yml deploy/prometheus/legacy_test.yml

.PHONY: vuln
vuln: ## Look for known vulnerabilities with govulncheck (needs vuln.go.dev, or GOVULNDB=file:///path of a copy; skipped is no success).
	@GOVULNCHECK='$(TOOL) govulncheck' scripts/vuln $(PKG)

.PHONY: fuzz
fuzz: services ## Fuzz every target for FUZZTIME (60s) each.
	FUZZTIME=$(FUZZTIME) GO=$(GO) scripts/fuzz $(PKG)
	$(if $(filter ./...,$(PKG)),MODULE=receiver FUZZTIME=$(FUZZTIME) GO=$(GO) scripts/fuzz)

# Histories have seeds of the day. The tests print them, and HERALD_HISTORY_FIRST repeats them.
.PHONY: soak
soak: services ## Drive the delivery core through fresh random histories of faults (HISTORIES), and run the other tests that grow with HERALD_SOAK.
	HERALD_HISTORIES=$(HISTORIES) $(GO) test -vet=off -count=1 -timeout=60m -run='TestHistories$$' -v ./internal/delivery
	HERALD_SOAK=1 HERALD_REQUIRE_SERVICES=1 $(GO) test -vet=off -count=1 -timeout=30m -run='TestHistoriesOnPostgres$$|TestPoison$$|TestModelIsPostgres$$' -v ./internal/delivery ./internal/testing/storetest
	TRIAL_BUILT=1 HERALD_SOAK=1 HERALD_REQUIRE_SERVICES=1 $(GO) test -vet=off -count=1 -timeout=30m -run='TestOutageLogOf|TestClientStream$$|TestEveryListenerReceivesEveryChange$$' -v ./internal/testing/trial ./internal/door/server/api

.PHONY: chaos
chaos: services ## Break a running Herald in every way of docs/guarantees.md, with real processes (half an hour; CHAOS picks rows).
	HERALD_REQUIRE_SERVICES=1 $(GO) test -vet=off -tags=chaos -count=1 -timeout=90m -run='$(value CHAOS)' -v ./internal/testing/trial

# ARGS are flags of the trial: -blocks 2000 -reorgs 200 -kills 30 is the full run, -seed N repeats one, -faults none is an honest node,
# -follow 1m shortens the ten minutes of the public node.
.PHONY: chain
chain: services ## Follow chains that reorganise behind a lying node, and compare Postgres with a plain reading (needs npm; 15 minutes).
	TRIAL_BUILT=1 HERALD_REQUIRE_SERVICES=1 $(GO) test -vet=off -tags=chain -count=1 -timeout=3h -v ./internal/testing/trial/chaintrial $(if $(ARGS),-args $(ARGS))

# What these three install comes from npm, at pinned versions, into the user's cache; nothing of it is Herald's.
.PHONY: conformance
conformance: ## Hold the MCP client against the protocol's conformance suite, one scenario after the other (needs npm).
	$(GO) run ./scripts/mcpconformance $(ARGS)

# axe-core comes from npm at a pinned version. PICTURES is a folder for a picture of each page.
AXE = axe-core@4.14.1
.PHONY: browser
browser: services ## Walk through every page in Chromium, with hostile text in every field (needs npm, and chromium: apt-get install chromium; 5 minutes).
	mkdir -p bin/axe $(if $(PICTURES),'$(PICTURES)') && cd bin/axe && npm pack --silent $(AXE) > /dev/null && tar xzf axe-core-*.tgz
	HERALD_AXE='$(CURDIR)/bin/axe/package/axe.min.js' HERALD_PICTURES='$(PICTURES)' HERALD_REQUIRE_SERVICES=1 \
		$(GO) test -vet=off -tags=browser -count=1 -timeout=15m -run='^TestInBrowser$$' -v ./internal/door/server/pages

# Without npm this fails, also in .ci/run; make test does not need it. After the first installation it needs no network.
.PHONY: sdk
sdk: sdk/typescript/node_modules/.installed examples/agent-typescript/node_modules/.installed ## Test sdk/typescript with each MCP server that it supports, pack it as npm would publish it, and test its example (needs npm).
	cd sdk/typescript && rm -f ./*.tgz && npm test --silent && npm pack --silent
	cd examples/agent-typescript && npm test --silent

%/node_modules/.installed: %/package-lock.json
	@command -v npm >/dev/null || { echo 'npm is missing: install Node.js 20 or newer with npm' >&2; exit 1; }
	cd $* && npm ci --prefer-offline --ignore-scripts --no-audit --no-fund --loglevel=error && touch node_modules/.installed

.PHONY: thirdparty
thirdparty: services receiver sdk ## Deliver to MCP servers that others wrote, and take jobs from other people's clients, with a whole Herald (needs npm).
	HERALD_REQUIRE_SERVICES=1 $(GO) test -vet=off -tags=thirdparty -count=1 -timeout=10m -run='^TestThirdParty' -v ./internal/testing/trial
	HERALD_REQUIRE_SERVICES=1 $(GO) test -vet=off -tags=thirdparty -count=1 -timeout=10m -run='^TestDocumented' -v ./internal/mcpcall/signing

# What is installed comes from npm, at pinned versions, into the user's cache.
.PHONY: bench-chain
bench-chain: services ## Measure how fast events come in, from a file and from a chain, and write docs/bench-chain.md (needs npm and a quiet machine).
	$(GO) run -tags=chain ./scripts/bench chain -o docs/bench-chain.md $(ARGS)

.PHONY: bench
bench: services ## Measure deliveries end to end against their ceilings and write docs/bench.md (needs a quiet machine).
	$(GO) run ./scripts/bench -o docs/bench.md $(ARGS)

.PHONY: bench-turns
bench-turns: services ## Measure 16 in flight with 64 agents by turns with the commit BEFORE, TURNS times each, and print the ratio.
	GO='$(GO)' scripts/turns '$(or $(BEFORE),$(error BEFORE=<commit> says what to compare with))' '$(TURNS)' $(ARGS)

.PHONY: benchmarks
benchmarks: services ## Run the Go benchmarks named by BENCH (all).
	HERALD_REQUIRE_SERVICES=1 $(GO) test -vet=off -run='^$$' -bench='$(BENCH)' -benchmem -timeout=30m $(PKG)

# Each fetch beside a plain GET of the same bytes from the same server; the last lines are the ratios.
.PHONY: bench-content
bench-content: ## Compare fetching verified content with an unverified GET, on loopback and with 50 ms added to every request.
	$(GO) test -vet=off -run='^$$' -bench='^BenchmarkContent$$' -benchtime=3s -timeout=10m ./internal/ipfs | awk '{print} \
		/^BenchmarkContent/ {split($$1, p, "/"); sub(/-[0-9]+$$/, "", p[4]); k = p[2] " " p[3]; if (p[4] == "how=get") {get[k] = $$3} else {fetch[k] = $$3; ks[n++] = k}} \
		END {for (i = 0; i < n; i++) {k = ks[i]; printf "%-28s GET %8.3f ms, fetch %8.3f ms, ratio %.3f\n", k, get[k] / 1e6, fetch[k] / 1e6, fetch[k] / get[k]}}'

.PHONY: nightly
nightly: ## Run soak, chaos, chain, conformance, thirdparty, browser, fuzz and vuln, and list their times (hours).
	scripts/nightly

.PHONY: ci
ci: ## Everything that a change has to pass (.ci/run).
	.ci/run

.PHONY: fresh
fresh: ## Time the demo and the tests as after a fresh clone: the committed files, an empty build cache.
	scripts/fresh

##@ Upkeep

.PHONY: contracts
contracts: ## Compile the development registries anew (needs npm).
	sh internal/testing/devnet/contracts/build.sh

# Needs the Go module proxy, no network else; the content's CIDs are the same each time, IPNS keys and records are not.
.PHONY: fixtures
fixtures: ## Make internal/ipfs/testdata/kubo anew with a real Kubo, built from its Go module (5 minutes).
	$(GO) run ./scripts/fixtures $(ARGS)

.PHONY: compose-secrets
compose-secrets: ## Make ./secrets for docker-compose.yml; what is there stays.
	scripts/compose-secrets

.PHONY: clean
clean: ## Remove what was built here. Caches and embedded data stay.
	rm -rf bin dist
