# Everything that is done with this repository, one target each: "make help".
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

# One set of flags for every build, test and lint, so that all share one build
# cache. The tag turns on SQLite's full-text search; the version comes from the
# linker, so Go need not ask git (which fails in a checkout of another user).
export GOFLAGS := -buildvcs=false -tags=sqlite_fts5

MODULE  := github.com/agentformation/service
VERSION ?= $(shell git describe --tags --match 'v*' 2>/dev/null | sed 's/^v//' | grep . || echo 0.1.0-dev)
COMMIT  ?= $(shell git rev-parse --short HEAD 2>/dev/null)
LDFLAGS := -s -w -X $(MODULE)/pkg/version.Version=$(VERSION) -X $(MODULE)/pkg/version.Commit=$(COMMIT)

GOLANGCI_VERSION := v2.15.0
LINT := .make/bin/golangci-lint
NFPM_VERSION := v2.45.0
NFPM := .make/bin/nfpm

# How long "make fuzz" spends on each fuzz test, and how many turns "make soak" makes.
FUZZTIME ?= 10s
SOAKTURNS ?= 10000
PORT ?= 7890

.PHONY: help run build deb test check conformance bench bench-full chaos soak fuzz generate lint fmt clean deps vet fresh

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: build ## start the supervisor with the sample formation (PORT=7890; OPENAI_API_KEY, OPENAI_MODEL, OPENAI_BASE_URL)
	@PORT='$(PORT)' scripts/run

build: deps ## leave bin/supervisor and bin/formation-runtime
	@mkdir -p bin
	go build -ldflags '$(LDFLAGS)' -o bin/ ./cmd/supervisor ./cmd/formation-runtime

deb: build $(NFPM) ## leave a Debian package of both programs in bin
	@scripts/deb '$(VERSION)'

test: ## run every test with the race detector
	@scripts/deps test
	@scripts/deps-npm.sh
	@scripts/deps-onnxruntime.sh
	go test -race -shuffle=on -count=1 -timeout=20m ./...

check: lint vet fresh test ## what CI demands: format, lint, vet, generated files, tests

conformance: deps ## run the official suite of the tool protocol against /mcp and our client
	@scripts/deps-npm.sh
	go test -count=1 -timeout=5m -v ./test/conformance/...

bench: build ## measure chat beside a minimal handler, at most 3 minutes
	@scripts/deps-npm.sh
	go run ./test/bench

bench-full: build ## the same, longer and steadier; writes test/bench/RESULTS.md
	@scripts/deps-npm.sh
	go run ./test/bench -full

soak: build ## have a formation answer SOAKTURNS turns with three tool calls each, and watch what it holds
	@scripts/deps-npm.sh
	go run ./test/bench -soak $(SOAKTURNS)

chaos: deps ## kill processes at random a hundred times under load, and print the table of faults
	go test -count=1 -timeout=5m -v -run 'TestKills|TestMatrix' ./test/chaos -kills 100

fuzz: deps ## run every fuzz test for FUZZTIME
	scripts/fuzz $(FUZZTIME)

generate: ## make the generated Go code again
	scripts/gen-proto

lint: deps $(LINT) ## format check and linters
	$(LINT) run ./...

fmt: deps $(LINT) ## format all Go code
	$(LINT) fmt ./...

clean: ## remove bin, .make and .dev (the formations of "make run" with their data)
	rm -rf bin .make .dev

deps:
	@scripts/deps
	@scripts/deps-onnxruntime.sh

vet: deps
	go vet ./...

fresh: deps
	scripts/check-fresh

$(LINT): Makefile
	scripts/install-tool $(LINT) github.com/golangci/golangci-lint/v2/cmd/golangci-lint $(GOLANGCI_VERSION)

$(NFPM): Makefile
	scripts/install-tool $(NFPM) github.com/goreleaser/nfpm/v2/cmd/nfpm $(NFPM_VERSION)
