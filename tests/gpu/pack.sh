#!/bin/sh
# Builds what the checks on a GPU machine need into target/gpu/longhaul-gpu and packs it into target/gpu/longhaul-gpu.tar.xz:
# programs without MPI and with HDF5 linked statically, tests, examples, kernels compiled for GPUS, a small data set, and the
# script run.sh. `make gpu-pack` runs it on a machine with Rust, a C++ compiler, CMake and a network, such as a login node.
#
# The programs need a C library at least as new as that of this machine. GPUS are the architectures of the compiled kernels;
# KERNELS is the folder of the NVRTC that compiles them: the oldest one makes machine code that most drivers load. JOBS limits
# the processors used. BUILD is cargo's target folder, by default target/gpu/build. EMULATOR=1 packs programs with the
# emulator, for rehearsals with DEVICE=emu.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
cd "$root"
jobs=${JOBS:-$(nproc)}
python=${PYTHON:-python3}
gpus=${GPUS:-sm_80,sm_90a}
folder=${CARGO_TARGET_DIR:-$root/target}/gpu
# Programs of their own: those in target/release have MPI.
target=${BUILD:-$folder/build}
stage=$folder/longhaul-gpu
features=longhaul/static-hdf5${EMULATOR:+,longhaul/emu,tensor/emu,tasks/emu}
say() { printf 'gpu-pack: %s\n' "$*" >&2; }
rm -rf "$stage"
mkdir -p "$stage/bin" "$stage/kernels" "$stage/python" "$stage/peers"

# HDF5 is built from its source, which takes CMake 3.26.
newer() { cmake --version 2>/dev/null | awk 'NR == 1 { split($3, v, "."); ok = v[1] > 3 || v[1] == 3 && v[2] >= 26 } END { exit !ok }'; }
PATH=$root/.deps/cmake/cmake/data/bin:$PATH
newer || "$python" -m pip install --quiet --no-compile --disable-pip-version-check --root-user-action=ignore \
    --upgrade --target .deps/cmake cmake
newer || {
    say "no CMake 3.26 or newer, which HDF5 is built with (pip install cmake)"
    exit 1
}

say "programs"
programs="train-stage evaluate ds-prep latent-cache ckpt timekeep"
examples="opcheck operator_update"
tests="programs device wgmma"
set --
for name in $programs; do set -- "$@" --bin "$name"; done
for name in $examples; do set -- "$@" --example "$name"; done
cargo build --release --locked -j "$jobs" --target-dir "$target" --no-default-features --features "$features" \
    -p longhaul -p tensor -p tasks "$@"
set --
for name in $tests; do set -- "$@" --test "$name"; done
cargo test --release --locked -j "$jobs" --target-dir "$target" --no-default-features --features "$features" \
    -p longhaul -p tensor "$@" --no-run --message-format=json-render-diagnostics > "$folder/tests.json"
for name in $programs; do strip -o "$stage/bin/$name" "$target/release/$name"; done
for name in $examples; do strip -o "$stage/bin/$name" "$target/release/examples/$name"; done
for name in $tests; do
    built=$("$python" -c 'import json, sys
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message.get("executable") and message["target"]["name"] == sys.argv[2]:
        print(message["executable"])' "$folder/tests.json" "$name")
    strip -o "$stage/bin/$name" "$built"
done

nvrtc=${KERNELS:-$root/.deps/nvrtc-12.4}
if test -d "$nvrtc"; then
    # Compiled again only if a kernel or the compiler has changed.
    key=$( (find lib/tensor/src -name '*.cu*' -o -path '*/kernel/compile/*.rs' | LC_ALL=C sort | xargs cat
        echo "$nvrtc $gpus") | cksum | tr ' ' -)
    cache=$folder/kernels-$key
    test -d "$cache" || rm -rf "$folder"/kernels-*
    mkdir -p "$cache"
    chmod 700 "$cache"
    say "kernels for $gpus"
    LONGHAUL_NVRTC=$nvrtc LONGHAUL_KERNEL_CACHE=$cache RAYON_NUM_THREADS=$jobs \
        "$stage/bin/train-stage" --warm-kernels "$gpus" >&2
    cp "$cache"/* "$stage/kernels/"
else
    say "no NVRTC in $nvrtc: the GPU machine compiles all kernels itself, which requires NVRTC there"
fi

say "data"
if ! test -e "$folder/data/whole" || ! cmp -s tests/gpu/data.sh "$folder/data/made-by"; then
    PATH=$stage/bin:$PATH sh tests/gpu/data.sh "$folder/data" "$root"
    cp tests/gpu/data.sh "$folder/data/made-by"
fi
cp -R "$folder/data" "$stage/data"

say "archive"
cp tests/gpu/run.sh tests/gpu/README.md "$stage/"
cp tests/gpu/[a-z]*.py "$stage/python/"
cp tests/peers/gpu.py tests/peers/operator_update.py "$stage/peers/"
cp slurm/gpu-check.sbatch "$stage/"
sed -n 's/^    ("\([a-z_0-9]*\)", .*cases),$/\1/p' lib/tensor/src/ops/mod.rs > "$stage/ops.txt"
commit=$(git describe --always --dirty --abbrev=12 --exclude '*' 2>/dev/null || echo unknown)
echo "{\"commit\": \"$commit\", \"gpus\": \"$gpus\"}" > "$stage/about.json"
tar -C "$folder" -c longhaul-gpu | xz -T "$jobs" --lzma2=preset=6,dict=96MiB > "$stage.tar.xz"
bytes=$(wc -c < "$stage.tar.xz")
say "$stage.tar.xz: $((bytes >> 20)).$(((bytes & 1048575) * 10 >> 20)) MiB; unpack it on the GPU machine, then: bash longhaul-gpu/run.sh first"
test "$bytes" -lt 41943040 || {
    say "more than 40 MiB"
    exit 1
}
