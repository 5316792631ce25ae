"""Part `first`: whether every kernel is right, and how far its time is from what is expected."""
import os
import re

from machine import architecture, ceilings
from rows import SILENCE, compare_with_model, of_card, opcheck, print_products
from steps import BIN, DEVICE, PACK, REHEARSAL, check, fail, left, output, problem, run, say, shown, together

PER_OP = ["kernels_agree_with_the_cpu_in_f64", "kernels_give_the_same_bits_every_time"]
WARPGROUPS = ("large_products_use_warpgroups_on_hopper", "attention_uses_warpgroups_on_hopper")


def tests_in(program):
    listed = output([BIN / program, "--list", "--include-ignored"])
    return [line[: -len(": test")] for line in listed.splitlines() if line.endswith(": test")]


def one_test(program, test, limit, more=None, label=None, under=(), silence=None):
    words = [*under, BIN / program, test, "--exact", "--include-ignored", "--nocapture"]
    return run(label or test, words, limit, {"LONGHAUL_TEST_DEVICE": DEVICE, **(more or {})}, quiet=not under, silence=silence)


def cases_of(op, test):
    """All cases of an op. A case that hangs costs its own time; those after it run in another process."""
    name, at = f"{op}: {test.split('_')[1]}", 0
    found = []
    while True:
        more = {"LONGHAUL_TEST_OPS": op, **({"LONGHAUL_TEST_FROM": str(at)} if at else {})}
        result = one_test("device", test, 150, more, name + (f" from case {at}" if at else ""), silence=SILENCE)
        found.append(result)
        cases = re.findall(r"^case (\d+): ", result.text, re.M)
        if not result.hung or not cases or len(found) == 4 or left() < 10:
            return found
        at = int(cases[-1]) + 1


def messages(result):
    """Everything that is wrong by the output of a test: wrong cases, else its panic or its last line."""
    wrong = list(dict.fromkeys(re.findall(r"^wrong: (.*)", result.text, re.M)))
    if result.hung or not wrong:
        wrong.append(f"{result.status}  {problem(result.text)}")
    return wrong


def agree(only):
    """Every op and update on the GPU against the CPU in f64; CUDA errors again with every launch waited for."""
    ops = [op for op in (PACK / "ops.txt").read_text().split() if not only or op in only]
    calls = [lambda test=test, op=op: cases_of(op, test) for test in PER_OP for op in ops]
    names = [(test, op) for test in PER_OP for op in ops]
    for test in tests_in("device"):
        if test not in PER_OP and "::emulator" not in test and not test.startswith(("emulator", "opcheck")) and not only:
            calls.append(lambda test=test: [one_test("device", test, 120)])
            names.append((test, None))
    found = together(calls, min(8, (os.cpu_count() or 2) // 2))
    wrong = [(name, result) for name, results in zip(names, found) for result in results if not result.ok]
    right = sum(all(result.ok for result in results) for results in found)
    say(f"{right} of {len(found)} checks passed")
    for _, result in wrong:
        if result.status != "skipped":
            for message in messages(result):
                fail(result.name, message)
    again = [(name, result) for name, result in wrong if result.hung or "CUDA_ERROR" in result.text][:4]
    for (test, op), result in again if not REHEARSAL else []:
        more = {"CUDA_LAUNCH_BLOCKING": "1", **({"LONGHAUL_TEST_OPS": op} if op else {})}
        second = one_test("device", test, 60, more, f"{result.name}, every launch waited for", silence=30)
        fail(second.name, messages(second)[0]) if not second.ok else None
    times = sorted(((sum(r.seconds for r in results), results[0].name) for results in found), reverse=True)[:6]
    say("slowest: " + ", ".join(f"{name} {took:.0f} s" for took, name in times))


def first(only):
    ceilings()
    agree(only)
    if (not only or "wgmma" in only) and (REHEARSAL or architecture() == "sm_90a"):
        for test in WARPGROUPS:
            check(one_test("wgmma", test, 100, silence=SILENCE))
    names = [[]] if not only else [["--filter", name] for name in only if name != "wgmma"]
    rows = []

    def measure(element, *more, limit=120):
        rows.extend((element, row) for row in opcheck(element, *more, limit=limit)[1])

    for name in names if not REHEARSAL else []:
        measure("bf16", *name)
    # Attention has no tf32; in f32 it takes most of the time.
    for name in ("linear", "conv") if not REHEARSAL else ():
        if not only or name in only:
            measure("tf32", "--filter", name)
    for name in names:
        measure("f32", *name, limit=160)
    compare_with_model([(e, row) for e, row in rows if row.get("both_us")][: 12 if REHEARSAL else None])
    print_products()
    updates = [(e, row) for e, row in rows if not row.get("both_us") and e == "f32"]
    if updates and not REHEARSAL:
        print("updates, f32, fraction of the card's copy: " + ", ".join(
            f"{row['name']} {shown(of_card(row, 'forward', e), 0, 2)}" for e, row in updates))
