# Targets. On a Debian machine with Rust, `make demo` and `make test` need no preparation.

PROGRAMS = ds-prep latent-cache train-stage ckpt evaluate hpo timekeep
PREFIX = /usr/local
PYTHON = python3
# Where cargo puts the release build, which demo and install use.
BIN := $(abspath $(or $(CARGO_TARGET_DIR),target))/release

.PHONY: demo test torture large check lines bench science ocr-base interop gpu-pack gpu-first gpu-test gpu-bench sass man install \
  deps nvrtc nvrtc-versions nvrtc-12.4 nvrtc-13.0

# A data set, a codec, latents, an operator (stopped once and resumed), a report: demo/.
demo: deps
	cargo build --release --locked --bins
	sh slurm/demo.sh "$(BIN)"

# Uses the dev profile, which is slightly optimised and keeps overflow checks: a slower build would not pay off.
# Failpoints (lib/unix/src/fail.rs) and the GPU emulator are in the same build, because
# a second one would take longer than all tests; without FAIL in the environment a failpoint does nothing.
# The tests include a real SLURM (tests/slurm), which mostly waits and runs beside the others; its output comes last. As
# root and in CI, a missing tool fails the test that uses it; elsewhere the test is skipped, and the number of skips is
# printed at the end (tests/support). TESTS="--test slurm" selects tests. All tests run, even after one has failed. Many of
# them wait half of their time, so there is one more thread than processors.
FEATURES = failpoints,emu
export RUST_TEST_THREADS ?= $(shell expr $$(nproc) + 1)
TEST = cargo test --workspace --locked --features $(FEATURES) --no-fail-fast
test: deps
	@skips=$$(mktemp) && slurm=$$(mktemp) && status=0 && beside= && export LONGHAUL_SKIPS="$$skips" && \
	trap 'rm -f "$$skips" "$$slurm"; test -z "$$beside" || kill "$$beside" 2>/dev/null || :' EXIT && \
	if test -z "$(TESTS)"; then \
	  $(TEST) --no-run || exit 1; \
	  $(TEST) --test slurm >"$$slurm" 2>&1 & beside=$$!; \
	fi; \
	$(TEST) $(or $(TESTS),-- --skip runs_survive_slurm) || status=$$?; \
	test -z "$$beside" || wait "$$beside" || status=$$?; beside=; \
	cat "$$slurm"; sort "$$skips"; echo "make: $$(wc -l < "$$skips") skips"; exit $$status

# The long versions of the reliability tests, about an hour: every fault at every failpoint, on a single rank and on the
# first of two; every kernel compiled for sm_90a; every decoder in bf16 and in 4 bits on the emulator; products of bf16 of
# every size up to 70; 500 kills, and 100 of one rank of several; 200 signals; suspended ranks; 100 power cuts (as root); data
# and latents that change during a run; minutes of fuzzing; 2,000 bit flips in the header of each kind of file under a memory
# limit; planted secrets; and an outage of the SLURM controller. Seeds are random and printed as SEED=N; set SEED=N in the
# environment to repeat a run.
TORTURE = TORTURE=1 cargo test --workspace --locked --features $(FEATURES)
torture: deps
	cargo build --workspace --locked --features $(FEATURES) --examples
	$(TORTURE) --test numbers --test nvrtc --test language -- --nocapture
	$(TORTURE) --lib product::bf16
	$(TORTURE) --test programs -- failpoints:: power_cut:: restart:: stop:: state:: data_parallel:: \
	  hostile::fuzz hostile::flips hostile::planted --nocapture
	SCENARIO=controller_outage $(TORTURE) --test slurm -- --nocapture

# LoRA on the NF4 weights of a decoder of two billion parameters, and of a Qwen3-VL-2B: time and memory of a check, an update
# and a prediction, on the CPU. Takes minutes, 4.3 GB below TMPDIR and numpy; LARGE_MODEL="--layers 2" has smaller ones.
large: deps
	cargo build --release --locked --bins
	$(PYTHON) tests/large.py "$(BIN)" -- $(LARGE_MODEL)
	$(PYTHON) tests/large.py --vision "$(BIN)" -- $(LARGE_MODEL)

# Lines of source code by crate, without blank lines, comments and tests.
SOURCES = -name '*.rs' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cpp' -o -name '*.h'
lines:
	@find lib/*/src bins -type f \( $(SOURCES) \) ! -name tests.rs ! -path '*/tests/*' -exec awk ' \
	  FNR == 1 { crate = FILENAME; sub(/^lib\//, "", crate); sub(/\/.*/, "", crate); test = 0 } \
	  /^#\[cfg\(test\)\]/ { test = 1 } \
	  test && /^}/ { test = 0; next } \
	  test && /^[^ #].*;$$/ { test = 0; next } \
	  !test && !/^[ \t]*$$/ && !/^[ \t]*\/\// { lines[crate]++; all++ } \
	  END { for (crate in lines) printf "%7d  %s\n", lines[crate], crate; printf "%7d  all\n", all }' {} +

check:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo clippy --workspace --all-targets --locked --features $(FEATURES) -- -D warnings

# Compares every op with the peak rate of this machine; the loader with positional reads and h5py, on data sets of 2 GiB
# below TMPDIR in one and two dimensions (PLANE); the cost of a checkpoint with memcpy, dd and torch.save; the
# all-reduce of two ranks with that of the MPI library; the demo's operator on two ranks with two separate runs, and the
# cost of a start; training updates of the same operator with the same shapes on two threads with PyTorch, with a model
# written by an expert and one as most people would write it; products and updates in bf16 with PyTorch's autocast; and the
# solvers of ds-prep with the same schemes in NumPy. Pairs are measured alternately.
LARGE = --hidden 256 --depth 8 --heads 8 --tokens 128 --dim 128 --batch 64
SMALL = --hidden 128 --depth 4 --heads 0 --tokens 32 --dim 8 --batch 16 --horizon 4
PLANE = --frames 101 --frame 128,128,2 --windows 1,5,20 --batch 16
# Pages of 192 x 32 pixels.
IMAGES = --image 4x24 --attention eager
bench:
	cargo run --release --locked -p tensor --example opcheck
	cargo build --release --locked -q -p dist --features mpi --example ranks
	mpirun --allow-run-as-root --oversubscribe -n 2 "$(BIN)/examples/ranks" speed
	cargo run --release --locked -q -p learn --example checkpoint_save
	cargo run --release --locked -q -p study --example suggest_rate
	cargo build --release --locked -q -p data --example loader_rate
	@rate=$$(mktemp -d) && trap 'rm -rf "$$rate"' EXIT && python= && \
	if $(PYTHON) -c 'import h5py' 2>/dev/null; then python="--python $(PYTHON)"; \
	else echo "bench: $(PYTHON) has no h5py: the loader is not compared with it" >&2; fi; \
	"$(BIN)/examples/loader_rate" "$$rate" $$python && rm -f "$$rate"/* && \
	"$(BIN)/examples/loader_rate" "$$rate" $$python $(PLANE)
	cargo build --release --locked -q --bins
	@test ! -d demo/latents || PATH="$(BIN):$$PATH" sh tests/peers/checkpoint_overhead.sh
	@test ! -d demo/latents || PATH="$(BIN):$$PATH" sh tests/peers/weak_scaling.sh
	@torch=yes; $(PYTHON) -c 'import torch' 2>/dev/null || torch=; \
	test -z "$$torch" || $(PYTHON) tests/peers/torch_save.py || exit 1; \
	for size in "$(LARGE)" "$(SMALL)"; do \
	  echo "operator update $$size"; \
	  cargo run --release --locked -q -p tasks --example operator_update -- \
	    $$size --filter 7 --threads 2 || exit 1; \
	  test -z "$$torch" || for written in --no-plain --plain; do \
	    $(PYTHON) tests/peers/operator_update.py $$written $$size --local --threads 2 || exit 1; \
	  done; \
	done; \
	test -z "$$torch" || { cargo build --release --locked -q -p tensor -p tasks --examples && \
	  $(PYTHON) tests/peers/bf16.py --ours "$(BIN)/examples"; } || exit 1; \
	if test -n "$$torch" && $(PYTHON) -c 'import transformers' 2>/dev/null; then \
	  cargo build --release --locked -q -p tasks --example text_update || exit 1; \
	  $(PYTHON) tests/peers/text_update.py --ours "$(BIN)/examples/text_update" || exit 1; \
	  $(PYTHON) tests/peers/text_update.py --precision bf16 --only update,predict --pairs 6 \
	    --ours "$(BIN)/examples/text_update" || exit 1; \
	  $(PYTHON) tests/peers/text_start.py "$(BIN)" || exit 1; \
	  cargo build --release --locked -q -p tasks --example generation || exit 1; \
	  $(PYTHON) tests/peers/generation.py --ours "$(BIN)/examples/generation" || exit 1; \
	  $(PYTHON) tests/peers/generation.py $(IMAGES) --prompt 56 --new 64 --ours "$(BIN)/examples/generation" || exit 1; \
	else echo "bench: $(PYTHON) has no torch and transformers: updates of texts and generation are not compared" >&2; fi; \
	if test -n "$$torch" && $(PYTHON) -c 'import transformers, peft' 2>/dev/null; then \
	  cargo build --release --locked -q -p tasks --example decoder_update || exit 1; \
	  $(PYTHON) tests/peers/decoder_update.py --ours "$(BIN)/examples/decoder_update" || exit 1; \
	  $(PYTHON) tests/peers/decoder_update.py $(IMAGES) --batch 8 --tokens 112 --ours "$(BIN)/examples/decoder_update" || exit 1; \
	else echo "bench: $(PYTHON) has no torch, transformers and peft: decoders are not compared" >&2; fi; \
	test -z "$$torch" || { cargo build --release --locked -q -p tasks --example cycle_update && \
	  for size in "" "--hidden 256 --depth 6 --heads 8 --repeats 5"; do \
	    $(PYTHON) tests/peers/cycle_update.py --pairs 10 --ours "$(BIN)/examples/cycle_update" $$size || exit 1; \
	  done; } || exit 1; \
	if $(PYTHON) -c 'import h5py, scipy' 2>/dev/null; then \
	  $(PYTHON) tests/peers/generators.py "$(BIN)" || exit 1; \
	else echo "bench: $(PYTHON) has no h5py and scipy: solvers are not compared" >&2; fi; \
	test -n "$$torch" || \
	  echo "bench: $(PYTHON) has no torch: nothing is compared with it; set PYTHON to use another Python" >&2

# Each protocol trains models for several seeds on its own data and writes benches/results/science-NAME.md; it is meant
# to take at most 45 minutes on two cores. It runs in science/NAME, resumes after an interruption and skips what is there.
PROTOCOLS = $(filter-out common,$(basename $(notdir $(wildcard benches/science/*.sh))))
science: $(PROTOCOLS:%=science-%)
science-%: deps
	cargo build --release --locked --bins
	cargo build --release --locked -p tasks --example science_table
	BIN="$(BIN)" TABLE="$(BIN)/examples/science_table" sh benches/science/$*.sh

# Trains slurm/ocr-base again, in five minutes, in ocr-base/.
ocr-base: deps
	cargo build --release --locked --bins
	sh slurm/ocr-base.sh "$(BIN)"

# Exports a run that is killed six times, and opens the exports with TensorBoard, Weights & Biases and an MLflow server.
# Compares searches with Optuna's. Opens exported models of texts and conversations with transformers and PEFT, and imports
# theirs.
# Compares sentence embeddings with those of sentence-transformers. pip installs these into .deps/interop, 6 GB.
INTEROP = .deps/interop
interop: deps $(INTEROP)/requirements.txt
	cargo build --release --locked --bins
	"$(INTEROP)/bin/python" tests/interop/check.py "$(BIN)"
	cargo build --release --locked -q -p study --examples
	"$(INTEROP)/bin/python" tests/interop/study.py "$(BIN)/examples"
	"$(INTEROP)/bin/python" tests/interop/text.py "$(BIN)"
	"$(INTEROP)/bin/python" tests/interop/text_settings.py "$(BIN)"
	"$(INTEROP)/bin/python" tests/interop/quantised.py "$(BIN)"
	"$(INTEROP)/bin/python" tests/interop/decoders.py "$(BIN)"
	"$(INTEROP)/bin/python" tests/interop/vision_language.py "$(BIN)"
	"$(INTEROP)/bin/python" tests/interop/pages.py "$(BIN)"
	"$(INTEROP)/bin/python" tests/interop/sentences.py "$(BIN)"

$(INTEROP)/requirements.txt: tests/interop/requirements.txt
	rm -rf "$(INTEROP)"
	$(PYTHON) -m venv "$(INTEROP)"
	"$(INTEROP)/bin/pip" install --quiet --disable-pip-version-check -r $<
	cp $< $@

# Checks on a GPU: tests/gpu/README.md. gpu-pack builds them into target/gpu/longhaul-gpu.tar.xz, for GPU machines without
# Rust, MPI, HDF5 and network; the others also run them here. gpu-first: whether every kernel is right, and how long it
# takes beside what its machine code lets expect. gpu-test: training, and memory errors and races by compute-sanitizer.
# gpu-bench: times beside PyTorch's, whose file goes to benches/results.
GPU = $(abspath $(or $(CARGO_TARGET_DIR),target))/gpu
ON_GPU = OUT="$(GPU)/results" bash "$(GPU)/longhaul-gpu/run.sh"
gpu-pack: nvrtc-12.4
	PYTHON="$(PYTHON)" sh tests/gpu/pack.sh

gpu-first: gpu-pack
	$(ON_GPU) first

gpu-test: gpu-pack
	$(ON_GPU) train; status=$$?; $(ON_GPU) sanitize && exit $$status

gpu-bench: gpu-pack
	rm -rf "$(GPU)/results"
	$(ON_GPU) bench; status=$$?; cp "$(GPU)"/results/*.json benches/results/ && exit $$status

# Compiles every kernel for six architectures and writes the table of their machine code again.
sass: deps
	LONGHAUL_WRITE_KERNELS=all cargo test --locked -p tensor --features emu --test nvrtc -- \
	  every_kernel_stays_within_the_table
	git --no-pager diff --stat -- lib/tensor/tests/nvrtc/kernels.txt

# Compiles every kernel with the oldest supported NVRTC and one between, and writes versions.txt: registers and spills
# beside those of the version of `make sass`.
nvrtc-versions: deps nvrtc-12.4 nvrtc-13.0
	LONGHAUL_WRITE_VERSIONS=1 cargo test --locked -p tensor --features emu --test nvrtc -- \
	  --nocapture every_supported_version
	git --no-pager diff --stat -- lib/tensor/tests/nvrtc/versions.txt

NVRTC_12.4 = nvidia-cuda-nvrtc-cu12==12.4.127
NVRTC_13.0 = nvidia-cuda-nvrtc==13.0.88
nvrtc-12.4 nvrtc-13.0: nvrtc-%:
	@test -d .deps/$@/nvidia || $(PYTHON) -m pip install --quiet --no-deps --no-compile \
	  --disable-pip-version-check --root-user-action=ignore --target .deps/$@ $(NVRTC_$*)

man:
	cargo build --locked --bins
	set -e; for p in $(PROGRAMS); do \
	  "$(dir $(BIN))debug/$$p" --generate man > man/$$p.1.new; \
	  mv man/$$p.1.new man/$$p.1; \
	done

# Uses the build of an earlier `make demo` if cargo is not on root's PATH.
SHARE = $(DESTDIR)$(PREFIX)/share
install:
	if command -v cargo >/dev/null; then cargo build --release --locked --bins; fi
	install -d "$(DESTDIR)$(PREFIX)/bin" $(addprefix "$(SHARE)"/,man/man1 man/man5 man/man7 \
	  bash-completion/completions zsh/site-functions fish/vendor_completions.d \
	  longhaul/slurm longhaul/configs doc/longhaul)
	set -e; for p in $(PROGRAMS); do \
	  install -m 755 "$(BIN)/$$p" "$(DESTDIR)$(PREFIX)/bin/"; \
	  "$(BIN)/$$p" --generate bash > "$(SHARE)/bash-completion/completions/$$p"; \
	  "$(BIN)/$$p" --generate zsh > "$(SHARE)/zsh/site-functions/_$$p"; \
	  "$(BIN)/$$p" --generate fish > "$(SHARE)/fish/vendor_completions.d/$$p.fish"; \
	done
	for n in 1 5 7; do install -m 644 man/*.$$n "$(SHARE)/man/man$$n/" || exit 1; done
	cp -R slurm/. "$(SHARE)/longhaul/slurm/"
	cp -R configs/. "$(SHARE)/longhaul/configs/"
	install -m 644 README.md CHANGELOG.md LICENSE-APACHE LICENSE-MIT "$(SHARE)/doc/longhaul/"

# What building and testing require in addition to Rust: a C compiler and linker (for BLAKE3's assembly code and for
# linking), HDF5's library and headers where hdf5-metno-sys looks for them, an MPI library with mpicc, and libclang to
# read its header (`--no-default-features --features engine` builds without MPI). Tests start ranks with mpirun. The
# tests of manual pages require mandoc, those of scripts shellcheck, of system calls strace, of copies rsync, and of
# jobs SLURM. Does nothing, and needs no network, if everything is installed.
HDF5_HEADER = /usr/include/hdf5/serial/H5pubconf.h
LIBCLANG = /usr/lib/llvm-*/lib/libclang[.-][s0-9]* /usr/lib/*/libclang[.-][s0-9]* /usr/lib64/libclang.so*
deps: nvrtc
	@missing=; wanted=; \
	lacks() { missing="$$missing $$1"; echo "deps: $$2" >&2; }; \
	command -v cargo >/dev/null || { echo "deps: no cargo: get Rust, https://rustup.rs" >&2; exit 1; }; \
	echo '#include <stdlib.h>' | cc -E - >/dev/null 2>&1 || lacks "gcc libc6-dev" "no C compiler"; \
	test -n "$$HDF5_DIR" || pkg-config --exists hdf5 2>/dev/null || test -e $(HDF5_HEADER) || \
	  lacks "libhdf5-dev pkg-config" "no HDF5 library (if it is installed elsewhere, set HDF5_DIR)"; \
	command -v mpicc >/dev/null && command -v mpirun >/dev/null || \
	  lacks "libopenmpi-dev openmpi-bin" "no MPI library (mpicc, mpirun)"; \
	test -n "$$LIBCLANG_PATH" || ls $(LIBCLANG) 2>/dev/null | grep -q . || \
	  lacks libclang-dev "no libclang (if it is installed elsewhere, set LIBCLANG_PATH to its folder)"; \
	for tool in mandoc shellcheck strace rsync; do \
	  command -v $$tool >/dev/null || wanted="$$wanted $$tool"; \
	done; \
	PATH="$$PATH:/usr/sbin" command -v slurmctld >/dev/null || wanted="$$wanted slurm-wlm"; \
	test -z "$$missing$$wanted" && exit 0; \
	if [ "$$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y --no-install-recommends $$missing $$wanted || test -z "$$missing"; \
	elif [ -n "$$missing" ]; then \
	  echo "deps: install:$$missing (on Debian, as root: make deps)" >&2; exit 1; \
	fi

# NVRTC compiles the CUDA kernels and nvdisasm prints their machine code, even on machines without a GPU; set
# LONGHAUL_NVRTC to use other copies. The version is that of lib/tensor/tests/nvrtc/kernels.txt. Only the tests of
# kernels require them and say so if they are missing, so without a network this is only a warning.
NVRTC = nvidia-cuda-nvrtc==13.5.37 nvidia-cuda-nvdisasm==13.5.37
NVRTC_FOLDER = .deps/nvrtc
nvrtc:
	@test -z "$$LONGHAUL_NVRTC" && test ! -e $(NVRTC_FOLDER)/nvidia/cu13/bin/nvdisasm || exit 0; \
	if ! $(PYTHON) -m pip --version >/dev/null 2>&1 && [ "$$(id -u)" -eq 0 ] && \
	  command -v apt-get >/dev/null; then \
	  apt-get update && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y --no-install-recommends python3-pip; \
	fi; \
	rm -rf $(NVRTC_FOLDER).new; \
	$(PYTHON) -m pip install --quiet --no-deps --no-compile --disable-pip-version-check \
	  --root-user-action=ignore --target $(NVRTC_FOLDER).new $(NVRTC); \
	test -d $(NVRTC_FOLDER).new/nvidia && rm -rf $(NVRTC_FOLDER) && \
	  mv $(NVRTC_FOLDER).new $(NVRTC_FOLDER) || \
	  echo "deps: no NVRTC: the tests of kernels require $(NVRTC) (pip), or LONGHAUL_NVRTC=FOLDER" >&2
