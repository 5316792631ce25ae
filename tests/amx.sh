#!/bin/sh
# Runs the tests of products in bf16 on an emulated processor with AMX, for machines without it: sh tests/amx.sh BOCHS KERNEL.
#
# BOCHS is Bochs 3.1 with AMX and the display library nogui. KERNEL is the image of a Linux that knows `setcpuid=`, such as
# vmlinuz in Debian's linux-binary-7.2.13+deb14-cloud-amd64. Building the disc takes xorriso, isolinux, syslinux-common, cpio
# and busybox-static. SECONDS_MAX limits the emulator, by default to an hour.
#
# Linux only uses AMX on processors with XFD (extended feature disable), which Bochs lacks: setcpuid=324 (word 10, bit 4) says
# that it is there. Then Linux grants permission as usual, but does not save tile registers when it switches threads, so
# only one thread may use them.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
limit=${SECONDS_MAX:-3600}
die() {
    printf 'amx: %s\n' "$1" >&2
    exit "${2:-1}"
}
test $# -eq 2 || die "usage: sh tests/amx.sh BOCHS KERNEL" 2
command -v "$1" > /dev/null ||
    die "$1: no such program: this needs Bochs 3.1 with AMX" 2
test -f "$2" || die "$2: no such kernel image (Debian: vmlinuz in linux-binary-7.2.13+deb14-cloud-amd64)" 2
bochs=$(realpath "$(command -v "$1")")
kernel=$(realpath "$2")
for tool in cargo xorriso cpio busybox timeout; do
    command -v $tool > /dev/null || die "no $tool (Debian: xorriso, cpio, busybox-static)"
done
if ldd "$(command -v busybox)" > /dev/null 2>&1; then die "busybox is linked dynamically (Debian: busybox-static)"; fi
loader="/usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32"
for file in $loader; do test -f "$file" || die "no $file (Debian: isolinux, syslinux-common)"; done

cd "$root"
tests=$(cargo test -p tensor --lib --locked --no-run --message-format=json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
test -x "$tests" || die "cargo names no executable of the library tests of tensor"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/root/bin" "$work/disc"
cp "$(command -v busybox)" "$work/root/bin/busybox"
strip -o "$work/root/tests" "$tests"
ldd "$tests" | grep -o '/[^ ]*' | while read -r library; do cp -L --parents "$library" "$work/root"; done
cat > "$work/root/init" << 'END'
#!/bin/busybox sh
RAYON_NUM_THREADS=1 EVERY=97 /tests product::bf16 --nocapture --test-threads=1
echo "amx: status $?"
/bin/busybox sleep 2
/bin/busybox poweroff -f
END
chmod +x "$work/root/init"
# shellcheck disable=SC2086
cp $loader "$work/disc"
cp "$kernel" "$work/disc/linux"
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) > "$work/disc/initrd"
printf '%s\n' 'DEFAULT linux' 'LABEL linux' 'LINUX linux' 'INITRD initrd' \
    'APPEND console=ttyS0 quiet panic=-1 setcpuid=324' > "$work/disc/isolinux.cfg"
cd "$work"
xorriso -as mkisofs -quiet -o disc.iso -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table \
    disc 2> trouble || die "xorriso: $(cat trouble)"

cat > bochsrc << END
cpu: model=sapphire_rapids, ips=50000000
memory: guest=512, host=512
display_library: nogui
ata0-master: type=cdrom, path=disc.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=serial
clock: sync=none, time0=1767225600
panic: action=fatal
log: log
END
# Bochs does not exit with 0 when the system is switched off.
timeout -k 5 "$limit" "$bochs" -q -f bochsrc < /dev/null > output 2>&1 || :
test -s serial || die "$bochs: $(tail -n 8 output)"
sed -n '/^running /,/^test result/p' serial
status=$(tr -d '\r' < serial | sed -n 's/^amx: status //p')
test -n "$status" || die "the tests did not end within $limit seconds: $(tail -n 8 serial)"
grep -q 'Level(Amx)' serial || die "the system did not offer AMX: $(grep -i -E 'setcpuid|xsave' serial)"
exit "$status"
