# uvala: the front door. `make help` lists the commands.

CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=

SECONDS_PER_TARGET ?= 30

release := target/release
step     = @printf '\n==> %s\n'
skipped  = printf '==> SKIPPED: %s\n'

.PHONY: help
help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' Makefile

.PHONY: demo
demo: release  ## build uvala and see two processes exchange frames through it
	$(release)/uvala demo

.PHONY: release
release:
	$(step) 'building uvala (release)'
	$(CARGO) build --release -p uvala

# ---- checks, the quick ones first ----

.PHONY: check
check: format tidy lint unit  ## formatting, rules, lints, unit tests: under two minutes when warm

.PHONY: test
test: everything  ## every test there is; installs what is missing
	$(step) 'all tests passed'

.PHONY: everything
everything: prepare format tidy lint unit doc end-to-end loom miri deny

.PHONY: prepare
prepare:
	$(step) 'tools'
	@.ci/prepare

.PHONY: format
format:
	$(step) 'formatting'
	$(CARGO) fmt --all --check

.PHONY: tidy
tidy:
	$(step) 'rules of the house'
	$(CARGO) xtask tidy

.PHONY: lint
lint:
	$(step) 'lints'
	$(CARGO) clippy --workspace --all-targets -- -D warnings

.PHONY: unit
unit:
	$(step) 'unit tests'
	$(CARGO) test --workspace --lib --bins

.PHONY: doc
doc:
	$(step) 'documentation: examples run, links lead somewhere'
	$(CARGO) test --workspace --doc
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --no-deps --quiet

.PHONY: end-to-end
end-to-end:
	$(step) 'end to end: real processes, the C ABI, hostile input'
	$(CARGO) test --workspace --tests --examples --no-run
	$(CARGO) test --workspace --test '*'

.PHONY: loom
loom:
	$(step) 'loom: every interleaving of the shared words'
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom $(CARGO) test -p uvala-ring --lib loom

.PHONY: miri
miri:
	$(step) 'miri: undefined behaviour in the ring'
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
		MIRIFLAGS=-Zmiri-disable-isolation CARGO_TARGET_DIR=target/miri \
			$(CARGO) +nightly miri test -p uvala-ring --lib; \
	else $(skipped) 'miri (rustup +nightly component add miri)'; fi

.PHONY: deny
deny:
	$(step) 'licences and advisories of dependencies'
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else $(skipped) 'cargo deny (cargo install cargo-deny)'; fi

.PHONY: fuzz
fuzz:  ## run every fuzz target for SECONDS_PER_TARGET seconds (nightly and cargo-fuzz)
	@$(CARGO) +nightly --version >/dev/null 2>&1 || \
		{ echo 'fuzzing needs nightly: rustup toolchain install nightly' >&2; exit 1; }
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz
	@set -e; for target in $$($(CARGO) +nightly fuzz list); do \
		printf '\n==> fuzz %s\n' $$target; \
		$(CARGO) +nightly fuzz run $$target -- -max_total_time=$(SECONDS_PER_TARGET); \
	done

# ---- measurements ----

.PHONY: bench
bench: release  ## measure every scenario beside its limit and its peers
	$(release)/uvala bench

.PHONY: bench-figures
bench-figures: release  ## draw the VALE paper's figures with our results beside them
	$(release)/uvala bench figures --out bench/results

.PHONY: clean
clean:  ## delete what was built
	$(CARGO) clean
