# uvala: the front door. `make help` lists the commands.

CARGO   ?= cargo
PREFIX  ?= /usr/local
DESTDIR ?=

SECONDS_PER_TARGET ?= 30
MINUTES ?= 3

target  := $(abspath $(or $(CARGO_TARGET_DIR),target))
release := $(target)/release
debug   := $(target)/debug
assets  := $(target)/assets
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
	$(CARGO) build --release -p uvala -p uvala-helper -p uvala-nic -p uvala-evpn
	@# By itself: a build of both would give the daemon what the API needs of the crate protocol.
	$(CARGO) build --release -p uvala-http

# ---- installation ----

bindir     = $(PREFIX)/bin
libdir     = $(PREFIX)/lib
libexecdir = $(PREFIX)/libexec
unitdir    = $(PREFIX)/lib/systemd
datadir    = $(PREFIX)/share
sysconfdir = /etc
version   := $(shell sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
soversion := 0
fill       = sed -e 's|@PREFIX@|$(PREFIX)|' -e 's|@BINDIR@|$(bindir)|' -e 's|@LIBDIR@|$(libdir)|' \
	-e 's|@LIBEXECDIR@|$(libexecdir)|' -e 's|@VERSION@|$(version)|' -e 's|@SYSCONFDIR@|$(sysconfdir)|'
to         = $(DESTDIR)

.PHONY: libs
libs: libnetmap
	$(step) 'building libuvala and libuvala_netmap (release)'
	$(CARGO) build --release -p uvala-capi
	ln -sf libuvala.so $(release)/libuvala.so.$(soversion)
	$(CARGO) build --profile preload -p uvala-netmap --lib
	cp $(target)/preload/libuvala_netmap.so $(release)/

# Hidden: a library that links the archive exports nothing of it, so that several copies in one
# process, netmap's own among them, do not call each other.
libnetmap_parts = context request options port
libnetmap_flags = -std=gnu11 -O2 -Wall -Wextra -fPIC -fvisibility=hidden -Iinclude

.PHONY: libnetmap
libnetmap:
	$(step) 'building libnetmap'
	mkdir -p $(release)/libnetmap
	rm -f $(release)/libnetmap.a
	for part in $(libnetmap_parts); do \
		$(CC) $(libnetmap_flags) $(CFLAGS) -c crates/netmap/libnetmap/$$part.c \
			-o $(release)/libnetmap/$$part.o || exit 1; \
	done
	$(AR) rcs $(release)/libnetmap.a $(libnetmap_parts:%=$(release)/libnetmap/%.o)

.PHONY: build
build: release libs  ## build what `make install` installs
	$(step) 'man pages and completions'
	rm -rf $(assets) && $(release)/uvala assets $(assets)
	$(release)/uvala-evpn --man > $(assets)/man/uvala-evpn.1
	$(release)/uvala-http --man > $(assets)/man/uvala-http.1

.PHONY: built
built:
	@test -d $(assets) -a -e $(release)/libuvala.so -a -e $(release)/libnetmap.a || \
		{ echo 'nothing to install: run `make build` first, as yourself' >&2; exit 1; }

# Copies only: root need not have cargo, and builds nothing that you could not delete.
.PHONY: install
install: built  ## install what was built, under PREFIX (/usr/local), below DESTDIR
	$(step) 'installing under $(DESTDIR)$(PREFIX)'
	install -D -m 755 $(release)/uvala '$(to)$(bindir)'/uvala
	install -m 755 $(release)/uvala-device '$(to)$(bindir)'/uvala-device
	install -m 755 $(release)/uvala-http '$(to)$(bindir)'/uvala-http
	install -m 755 $(release)/uvala-evpn '$(to)$(bindir)'/uvala-evpn
	install -D -m 755 $(release)/uvala-helper '$(to)$(libexecdir)'/uvala-helper
	@# The helper opens nothing before /etc/uvala/helper.toml allows it.
	test -n '$(DESTDIR)' || test "$$(id -u)" != 0 || \
		setcap cap_net_admin,cap_net_raw,cap_bpf+ep '$(libexecdir)'/uvala-helper || \
		echo 'uvala-helper has no rights: setcap (Debian: libcap2-bin) is missing' >&2
	install -D -m 755 $(release)/libuvala.so '$(to)$(libdir)'/libuvala.so.$(soversion)
	ln -sf libuvala.so.$(soversion) '$(to)$(libdir)'/libuvala.so
	install -D -m 644 $(release)/libuvala.a '$(to)$(libdir)'/libuvala.a
	install -m 755 $(release)/libuvala_netmap.so '$(to)$(libdir)'/libuvala_netmap.so
	install -d '$(to)$(PREFIX)'/include
	install -m 644 include/uvala*.h '$(to)$(PREFIX)'/include/
	@# Not where netmap's own are: use them with `pkg-config --cflags --libs uvala-netmap`.
	install -d '$(to)$(PREFIX)'/include/uvala/net
	install -m 644 include/net/*.h '$(to)$(PREFIX)'/include/uvala/net/
	install -m 644 include/libnetmap.h '$(to)$(PREFIX)'/include/uvala/
	install -D -m 644 $(release)/libnetmap.a '$(to)$(libdir)'/uvala/libnetmap.a
	install -d '$(to)$(datadir)'/man/man1 '$(to)$(datadir)'/man/man5 \
		'$(to)$(datadir)'/bash-completion/completions \
		'$(to)$(datadir)'/zsh/site-functions '$(to)$(datadir)'/fish/vendor_completions.d
	install -m 644 $(assets)/man/*.1 '$(to)$(datadir)'/man/man1/
	install -m 644 $(assets)/man/*.5 '$(to)$(datadir)'/man/man5/
	install -m 644 $(assets)/completions/uvala.bash \
		'$(to)$(datadir)'/bash-completion/completions/uvala
	install -m 644 $(assets)/completions/_uvala '$(to)$(datadir)'/zsh/site-functions/_uvala
	install -m 644 $(assets)/completions/uvala.fish \
		'$(to)$(datadir)'/fish/vendor_completions.d/uvala.fish
	install -d '$(to)$(libdir)'/pkgconfig '$(to)$(unitdir)'/system '$(to)$(unitdir)'/user
	$(fill) dist/uvala.pc.in > '$(to)$(libdir)'/pkgconfig/uvala.pc
	$(fill) dist/uvala-netmap.pc.in > '$(to)$(libdir)'/pkgconfig/uvala-netmap.pc
	$(fill) dist/uvala.service.in > '$(to)$(unitdir)'/system/uvala.service
	$(fill) dist/uvala.user.service.in > '$(to)$(unitdir)'/user/uvala.service
	$(fill) dist/uvala-metrics.service.in > '$(to)$(unitdir)'/system/uvala-metrics.service
	$(fill) dist/uvala-http.service.in > '$(to)$(unitdir)'/system/uvala-http.service
	$(fill) dist/uvala-http.user.service.in > '$(to)$(unitdir)'/user/uvala-http.service
	$(fill) dist/uvala-evpn@.service.in > '$(to)$(unitdir)'/system/uvala-evpn@.service
	$(fill) dist/uvala-helper.socket > '$(to)$(unitdir)'/system/uvala-helper.socket
	$(fill) dist/uvala-helper@.service.in > '$(to)$(unitdir)'/system/uvala-helper@.service
	install -d -m 755 '$(to)$(sysconfdir)'/uvala
	test -e '$(to)$(sysconfdir)'/uvala/helper.toml || \
		install -m 644 dist/helper.toml '$(to)$(sysconfdir)'/uvala/helper.toml
	install -D -m 644 docs/uvala.toml '$(to)$(datadir)'/doc/uvala/uvala.toml
	install -m 644 docs/http.md '$(to)$(datadir)'/doc/uvala/http.md
	test -e '$(to)$(sysconfdir)'/uvala.toml || \
		install -D -m 644 dist/uvala.toml '$(to)$(sysconfdir)'/uvala.toml
	install -D -m 644 dist/uvala.rules.yml '$(to)$(datadir)'/uvala/prometheus/uvala.rules.yml
	install -D -m 644 dist/uvala.grafana.json '$(to)$(datadir)'/uvala/grafana/uvala.json
	install -D -m 755 dist/proxmox/uvala-hook '$(to)$(datadir)'/uvala/proxmox/uvala-hook
	test -n '$(DESTDIR)' || ldconfig || true

.PHONY: uninstall
uninstall:  ## remove the installed files; the configuration stays
	rm -f '$(to)$(libexecdir)'/uvala-helper '$(to)$(unitdir)'/system/uvala-helper*
	rm -f '$(to)$(bindir)'/uvala-evpn '$(to)$(unitdir)'/system/uvala-evpn@.service
	rm -f '$(to)$(bindir)'/uvala '$(to)$(bindir)'/uvala-device '$(to)$(libdir)'/libuvala.* \
		'$(to)$(libdir)'/libuvala_netmap.so '$(to)$(PREFIX)'/include/uvala*.h
	rm -f '$(to)$(datadir)'/man/man1/uvala*.1 '$(to)$(datadir)'/man/man5/uvala.toml.5
	rm -f '$(to)$(datadir)'/bash-completion/completions/uvala \
		'$(to)$(datadir)'/zsh/site-functions/_uvala \
		'$(to)$(datadir)'/fish/vendor_completions.d/uvala.fish
	rm -rf '$(to)$(PREFIX)'/include/uvala '$(to)$(libdir)'/uvala
	rm -f '$(to)$(libdir)'/pkgconfig/uvala.pc '$(to)$(libdir)'/pkgconfig/uvala-netmap.pc
	rm -f '$(to)$(unitdir)'/system/uvala.service \
		'$(to)$(unitdir)'/user/uvala.service
	rm -f '$(to)$(unitdir)'/system/uvala-metrics.service
	rm -f '$(to)$(bindir)'/uvala-http '$(to)$(unitdir)'/system/uvala-http.service \
		'$(to)$(unitdir)'/user/uvala-http.service
	rm -rf '$(to)$(datadir)'/doc/uvala '$(to)$(datadir)'/uvala

# ---- packages ----

# Of one version, a package with a higher revision is the newer one.
revision = 1
package  = $(target)/uvala_$(version)-$(revision)_$(shell dpkg --print-architecture 2>/dev/null).deb
packaged = $(target)/package

# The release as a whole is what `make install` installs; dist/deb adds what Debian wants of it.
.PHONY: deb
deb: built  ## make a Debian package of what was built
	$(step) 'packaging $(notdir $(package))'
	rm -rf $(packaged) && mkdir -p $(packaged)
	$(MAKE) --no-print-directory install PREFIX=/usr DESTDIR=$(packaged)/root
	dist/deb/build $(packaged)/root $(version)-$(revision) $(package)

# For systems with 64-bit libraries in lib64, as Fedora has them.
rpm = $(target)/uvala-$(version)-$(revision).$(shell uname -m).rpm

.PHONY: rpm
rpm: built  ## make an RPM package of what was built (rpmbuild)
	$(step) 'packaging $(notdir $(rpm))'
	rm -rf $(packaged) && mkdir -p $(packaged)
	$(MAKE) --no-print-directory install PREFIX=/usr libdir=/usr/lib64 DESTDIR=$(packaged)/root
	dist/rpm/build $(packaged)/root $(version) $(revision) $(rpm)

CONTAINER_TOOL ?= podman
image = localhost/uvala:$(version)

.PHONY: image
image: built  ## make a container image of what was built (podman, or CONTAINER_TOOL=docker)
	$(step) 'packaging $(image)'
	rm -rf $(packaged) && mkdir -p $(packaged)
	$(MAKE) --no-print-directory install PREFIX=/usr DESTDIR=$(packaged)/root
	dist/image/build $(packaged)/root $(CONTAINER_TOOL) $(image)

# The library, without what only debuggers read, and the package around it.
.PHONY: wheel
wheel: built  ## make a Python wheel of the library that was built
	$(step) 'packaging the wheel'
	rm -rf $(target)/wheel && mkdir -p $(target)/wheel
	strip --strip-unneeded -o $(target)/wheel/libuvala.so.0 $(release)/libuvala.so
	UVALA_LIBRARY=$(target)/wheel/libuvala.so.0 \
		python3 -m pip wheel --quiet --no-deps --wheel-dir $(target)/wheel ./python

# The programs and libraries that are installed, as cargo-cyclonedx calls them.
released = uvala_bin uvala-http_bin uvala-device_bin uvala-evpn_bin uvala-helper_bin \
	uvala_cdylib-staticlib uvala_netmap_cdylib-rlib

.PHONY: sbom
sbom:  ## list what each program and library is made of, in CycloneDX (cargo-cyclonedx)
	$(step) 'listing what the release is made of'
	@$(CARGO) cyclonedx --version >/dev/null 2>&1 || \
		{ echo 'cargo install --locked cargo-cyclonedx@0.5.9' >&2; exit 1; }
	rm -rf $(target)/sbom && mkdir -p $(target)/sbom
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct || date +%s) $(CARGO) cyclonedx --quiet \
		--format json --spec-version 1.5 --describe binaries
	@# It writes beside each Cargo.toml, and names the place of the tree.
	for program in $(released); do \
		sed 's|file://$(CURDIR)/|file://./|g' crates/*/$$program.cdx.json \
			> $(target)/sbom/$$program.cdx.json || exit 1; \
	done
	rm -f crates/*/*.cdx.json tests/*.cdx.json xtask/*.cdx.json fuzz/*/*.cdx.json

# What a release is: nothing of it is made with a dependency that deny.toml forbids.
.PHONY: dist
dist: build  ## make all packages and the SBOM, after the checks of dependencies (cargo-deny)
	$(step) 'licences and advisories of dependencies'
	$(CARGO) deny check
	$(MAKE) --no-print-directory sbom deb rpm image wheel

# As root, with mmdebstrap, rpm and podman; minutes of building before it, and a few of its own.
.PHONY: test-packages
test-packages: build  ## build all packages; install, use, upgrade and remove them in fresh places
	$(MAKE) --no-print-directory deb revision=1
	$(MAKE) --no-print-directory deb revision=2
	$(MAKE) --no-print-directory rpm wheel image
	rm -rf $(packaged) && $(MAKE) --no-print-directory install PREFIX=/usr DESTDIR=$(packaged)
	.ci/packages $(packaged) $(target)/uvala_$(version)-[12]_*.deb
	.ci/rpm $(packaged) $(rpm)
	.ci/wheel $(release)/uvala $(target)/wheel/*.whl
	.ci/image $(release)/uvala $(image)

# ---- checks, the quick ones first ----
#
# Needed: Rust with rustfmt and clippy, a C and a C++ compiler, clang (for eBPF), make, pkg-config,
# ip. `.ci/prepare` gets those where it may, and Miri (a nightly toolchain) where rustup is. It does
# not install cargo-deny (minutes of building). Without Miri or cargo-deny, their step says SKIPPED.

.PHONY: check
check: format tidy lint unit  ## formatting, rules, lints, unit tests: under two minutes when warm

.PHONY: test
test: everything  ## every test there is; what needs tools that are not here says SKIPPED
	$(step) 'all tests passed'

.PHONY: everything
everything: prepare format tidy lint unit counts doc end-to-end end-to-end-workers loom miri deny

.PHONY: prepare
prepare:
	$(step) 'tools'
	@.ci/prepare
	@.ci/guests

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

.PHONY: counts
counts:
	$(step) 'what a frame costs, in instructions'
	$(CARGO) xtask counts

.PHONY: doc
doc:
	$(step) 'documentation: examples run, links lead somewhere'
	$(CARGO) test --workspace --doc
	@# The comments of the command line are its help texts, not rustdoc.
	RUSTDOCFLAGS='-D warnings' $(CARGO) doc --workspace --exclude uvala --no-deps --quiet

.PHONY: end-to-end
end-to-end:
	$(step) 'end to end: real processes, the C ABI, hostile input'
	$(CARGO) build --workspace --lib --bins --examples
	UVALA='$(debug)/uvala' $(CARGO) test --workspace --no-fail-fast --test '*'

# Tests whose daemons then have three workers, and switches that all of them run.
workers_tests = crash doorbells groups hostile many many_wake_ups mirror offloads port_security \
	ports programs restart see_drops see_frames siege slow_reader storms taps vhost_user vlan_escapes

.PHONY: end-to-end-workers
end-to-end-workers:
	$(step) 'end to end: switches that three workers run'
	$(CARGO) build --workspace --lib --bins --examples
	UVALA='$(debug)/uvala' UVALA_WORKERS=3 $(CARGO) test --workspace --no-fail-fast \
		$(addprefix --test ,$(workers_tests))

.PHONY: soak
soak:  ## MINUTES of hostile programs, load, churn and kill -9; a line a minute
	$(step) 'soak: $(MINUTES) minutes'
	@! grep -qs 'nice -' /proc/self/autogroup || { echo \
		'soak: not at a raised priority (docs/limits.md); echo 0 > /proc/self/autogroup' >&2; exit 1; }
	$(CARGO) build --release -p uvala -p uvala-tests --bins
	UVALA='$(release)/uvala' $(release)/uvala-soak $(MINUTES)

.PHONY: loom
loom:
	$(step) 'loom: every interleaving of the shared words'
	RUSTFLAGS='--cfg loom' CARGO_TARGET_DIR=target/loom \
		$(CARGO) test -p uvala-ring -p uvala-device --lib

# Regions are never freed (memory/miri.rs): ignore-leaks. lost.rs makes pointers of addresses:
# permissive-provenance.
.PHONY: miri
miri:
	$(step) 'miri: undefined behaviour in the ring'
	@if $(CARGO) +nightly miri --version >/dev/null 2>&1; then \
		PROPTEST_CASES=4 CARGO_TARGET_DIR=$(target)/miri \
		MIRIFLAGS='-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-permissive-provenance' \
			$(CARGO) +nightly miri test -p uvala-ring --lib; \
	else $(skipped) 'miri (rustup +nightly component add miri)'; fi

.PHONY: deny
deny:
	$(step) 'licences and advisories of dependencies'
	@if $(CARGO) deny --version >/dev/null 2>&1; then $(CARGO) deny check; \
	else $(skipped) 'cargo deny (cargo install --locked cargo-deny)'; fi

# Newer nightlies refuse functions named `read` and `open` with another ABI than C, which
# libuvala_netmap has on purpose: cancelled threads unwind through them.
fuzz = RUSTFLAGS=--cap-lints=warn $(CARGO) +nightly fuzz

.PHONY: fuzzers
fuzzers:
	@$(CARGO) +nightly --version >/dev/null 2>&1 || \
		{ echo 'fuzzing needs nightly: rustup toolchain install nightly' >&2; exit 1; }
	@$(CARGO) fuzz --version >/dev/null 2>&1 || $(CARGO) install --locked cargo-fuzz

# libFuzzer begins with fuzz/corpus and adds to fuzz/found.
.PHONY: fuzz
fuzz: fuzzers  ## run every fuzz target for SECONDS_PER_TARGET seconds (nightly and cargo-fuzz)
	@set -e; for target in $$($(fuzz) list); do \
		printf '\n==> fuzz %s\n' $$target; \
		mkdir -p fuzz/found/$$target fuzz/corpus/$$target; \
		$(fuzz) run $$target fuzz/found/$$target fuzz/corpus/$$target -- \
			-max_total_time=$(SECONDS_PER_TARGET); \
	done

# Few inputs that reach every branch that was ever reached; the shortest of them go where there
# are more than 40 kB.
.PHONY: fuzz-corpus
fuzz-corpus: fuzzers  ## replace fuzz/corpus by the best of it and of fuzz/found
	@set -e; for target in $$($(fuzz) list); do \
		printf '\n==> corpus of %s\n' $$target; \
		rm -rf fuzz/found/.kept; mkdir -p fuzz/found/.kept fuzz/found/$$target fuzz/corpus/$$target; \
		$(fuzz) run $$target fuzz/found/.kept fuzz/corpus/$$target \
			fuzz/found/$$target -- -set_cover_merge=1 -use_counters=0; \
		(cd fuzz/found/.kept && ls -lS | \
			awk 'NR > 1 && (sum += $$5) > 40000 { print $$NF }' | xargs -r rm); \
		rm -rf fuzz/corpus/$$target; mv fuzz/found/.kept fuzz/corpus/$$target; \
	done

# ---- measurements ----

.PHONY: bench
bench: release  ## measure every scenario beside its limit and its peers
	$(release)/uvala bench

guests_scenarios = vhost-udp vhost-tcp vhost-ping e1000-udp e1000-csb-udp ptnet-tcp ptnet-ping

# QEMU=…, and UVALA_VM_DIR=… for kernels and drivers; by default what .ci/guests unpacks and builds.
.PHONY: bench-guests
bench-guests: release  ## measure between guests in QEMU, beside a Linux bridge with TAPs
	@.ci/guests
	QEMU='$(or $(QEMU),.ci/qemu)' $(release)/uvala bench $(guests_scenarios)

.PHONY: bench-figures
bench-figures: release  ## draw the VALE paper's figures with our results beside them
	$(release)/uvala bench figures --out bench/results

.PHONY: clean
clean:  ## delete what was built
	$(CARGO) clean
