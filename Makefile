.DEFAULT_GOAL := help

# One pattern for the packages of all modules that go.work joins.
PACKAGES := github.com/go-reservoir/reservoir/...

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GREMLINS    := github.com/go-gremlins/gremlins/cmd/gremlins@v0.6.0

# TIMEOUT is for one test binary. The slowest takes a minute or two on two cores. A hang should end with the goroutines' stacks before CI's own timeout.
TIMEOUT  := 10m
FUZZTIME := 30s
SEED     := 1
T        := 10m
SIZE     := full
STATES   := 200000000
SCOPE    := -clients=3 -tokens=3 -sends=3
M        := internal/tokens

# SERVER=DIR is the directory of another redis-server, of another version for example.
SERVER ?=
ifneq ($(SERVER),)
export PATH := $(abspath $(SERVER)):$(PATH)
endif

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Three processes share a limit over Redis; one is killed, Redis goes and comes back. Needs only Go.
	@go run ./examples/demo

.PHONY: redis
redis: ## Install redis-server, if it is missing and that is possible.
	@.ci/need redis-server redis-server

# The race detector is linked by the C compiler.
.PHONY: cc
cc:
	@.ci/need cc gcc libc6-dev

# Go runs a test again if something has changed that it depends on. SHUFFLE=-shuffle=on runs
# all tests, each package's in random order. By default each process under the race detector
# sleeps for a second at its end, to see races of goroutines that are left; goleak finds
# those. The heaps of tests are small, so to collect them seldom saves a tenth of the
# processor's time. `make lint` vets. No more packages than cores run at once, because a
# cluster takes nodes that wait for a processor for dead. They run in the order of their
# names: the two slowest, the root and redisstore, begin first, and what is torn apart on
# purpose comes last, when little else wants the processor.
.PHONY: test
test: redis cc ## Run all tests of all modules, with the race detector. SHUFFLE=-shuffle=on also if nothing has changed.
	go list -race -test -export $(PACKAGES) >/dev/null # compiles, but not beside tests whose servers must not wait
	GOGC=400 GORACE=atexit_sleep_ms=0 go test -race -vet=off $(SHUFFLE) -p=$$(nproc) -timeout=$(TIMEOUT) $(PACKAGES)

.PHONY: quick
quick: redis ## Run the tests of the limiter and of its keys, without the race detector: half a minute.
	GOGC=400 go test -timeout=$(TIMEOUT) . ./internal/key

# What was measured goes into the tables of README.md and docs/performance.md, and what is
# simulated in a moment into docs/choosing.md.
TABLES = go test -count=1 -run='^(TestTablesOfResults|TestTranscripts)$$' ./docs -update

.PHONY: bench
bench: redis ## Measure side by side with peers: tables in test/results. SIZE=full or quick.
	cd test/bench && go test -count=1 -timeout=45m -run='^TestPeers$$' -size=$(SIZE) -results=../results
	$(TABLES)

.PHONY: cases
cases: redis ## Measure README's table, beside a call per request: ten minutes, or five with SIZE=quick.
	cd test/bench && go test -count=1 -timeout=45m -run='^TestCases$$' -size=$(SIZE) -results=../results
	$(TABLES)

.PHONY: picture
picture: redis ## Record the demo for a minute, and draw README's picture of it.
	go run ./examples/demo -for 1m -record test/results/demo.json
	go test -count=1 ./test/picture -update

.PHONY: fleet
fleet: ## Simulate fleets of processes: a table in test/results. SEED=1.
	cd test/fleet && go test -tags=fleet -count=1 -timeout=30m -run='^TestFleet$$' -fleet=all -seed=$(SEED) -results=../results

# ROWS is a list of patterns such as 20/60,3/*/bursts. KEEP=1 writes the table that later ones
# are compared with.
ROWS := all
KEEP :=
.PHONY: everyday
everyday: ## Simulate the limits that most people have, beside the committed table. ROWS=all KEEP=1.
	cd test/fleet && go test -count=1 -timeout=1h -run='^TestEveryday$$' -everyday='$(ROWS)' -seed=$(SEED) $(if $(KEEP),-keep=../results/everyday.txt)

# ROWS is a list of parts of names such as 'settle;zipf'. KEEP=1 writes the table.
.PHONY: rolling
rolling: ## Simulate rolling limits, each with its bar. ROWS=all KEEP=1.
	cd test/fleet && go test -count=1 -timeout=30m -run='^TestRolling$$' -rolling='$(ROWS)' -seed=$(SEED) $(if $(KEEP),-keep=../results/rolling.txt)

.PHONY: provider
provider: ## Simulate fleets under a provider's limit, beside redis_rate and back-off: a table in test/results. SEED=1.
	cd test/provider && go test -count=1 -timeout=1h -run='^TestProvider$$' -seed=$(SEED) -results=../results

# AGAINST is a commit, by default the last tag. REMARK is for the head of the table.
AGAINST :=
REMARK  :=
.PHONY: cost
cost: redis ## Measure what calls cost, in turns with another commit. SIZE=full or quick. AGAINST=v0.1.0.
	cd test/cost && go test -count=1 -timeout=1h -run='^TestCost$$' -size=$(SIZE) -against='$(AGAINST)' -remark='$(REMARK)' -results=../results

.PHONY: torture
torture: redis cc ## Break servers, networks and processes at random for T=10m, and judge; then run the other long tests.
	cd test/torture && go test -count=1 -timeout=0 -v -run='^TestTorture$$' -torture=$(T) -seed=$(SEED)
	go test -count=1 -v -run='^TestCardinalityAttack$$' . -cardinality=5000000
	go test -count=1 -timeout=0 -run='^(TestIdleKeysLeave|TestCommonReset|TestWaitersOfAllKeys|TestRecovery)$$' . -large
	cd test/seeds && go test -count=1 -timeout=0 -run='^TestSeeds$$' -seeds=1000000

# Each state takes about 12 bytes, for its hash. SCOPE also takes -times and -seed.
.PHONY: search
search: ## Look at every order of calls and faults in a small scope, for T=10m and up to STATES states.
	cd test/search && go test -count=1 -timeout=0 -v -run='^TestLong$$' -states=$(STATES) -within=$(T) $(SCOPE)
	go test -count=1 -timeout=0 -v -run='^TestSearch$$' ./internal/key -search=200000 -search.seed=$(SEED)

# M is a directory of one package. The timeout is generous, because a mutant that loops must
# end and a busy machine must not kill one.
.PHONY: mutants
mutants: ## Change one part in one place at a time, and list the changes that no test notices. M=internal/tokens.
	go run $(GREMLINS) unleash --workers=2 --timeout-coefficient=20 ./$(M)

.PHONY: lint
lint: ## Check format, go vet and staticcheck.
	@unformatted=$$(gofmt -l .); [ -z "$$unformatted" ] || { echo "gofmt -w $$unformatted"; exit 1; }
	go vet -tags=fleet $(PACKAGES)
	go run $(STATICCHECK) -tags=fleet $(PACKAGES)

# What tests use starts servers by signals that Windows lacks.
SHIPPED = $$(go list $(PACKAGES) | grep -vE '/(docs|test|internal/(redistest|testnet))(/|$$)')

.PHONY: cross
cross: ## Compile what ships for ARM, 32 bits, Windows and macOS.
	for target in linux/arm64 linux/386 windows/amd64 darwin/arm64; do \
		GOOS=$${target%/*} GOARCH=$${target#*/} go build $(SHIPPED) || exit 1; \
	done

.PHONY: release-check
release-check: ## Play a release of all modules: is each tidy, can a stranger require and install them? Needs a module proxy.
	.ci/release

.PHONY: release
release: ## Check, commit and tag a release here; print how to push it. VERSION=v0.1.0.
	.ci/release $(or $(VERSION),$(error make release VERSION=v0.1.0))

.PHONY: cover
cover: redis ## Measure how much of the code the tests run; the profile is cover.out.
	go test -timeout=$(TIMEOUT) -coverpkg=$(PACKAGES) -coverprofile=cover.out $(PACKAGES)
	go tool cover -func=cover.out | tail -1

.PHONY: fuzz
fuzz: redis ## Run every fuzz test for FUZZTIME, 30s each.
	@for pkg in $$(go list $(PACKAGES)); do \
		for name in $$(go test -list='^Fuzz' $$pkg | grep '^Fuzz'); do \
			go test -run='^$$' -fuzz="^$$name\$$" -fuzztime=$(FUZZTIME) $$pkg || exit 1; \
		done; \
	done

.PHONY: tidy
tidy: ## Tidy every module's go.mod and format the code.
	.ci/release -fix
	gofmt -w .
