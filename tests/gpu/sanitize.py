"""Part `sanitize`: compute-sanitizer over the checks of the main ops, every tensor an allocation of its own."""
import re

from first import PER_OP, WARPGROUPS, one_test
from steps import REHEARSAL, fail, output, problem, together

OPS = "linear matmul attention conv depthwise_conv layernorm rmsnorm group_norm cross_entropy embedding adaln scatter_add".split()
# racecheck takes minutes for large cases.
SMALL = {"racecheck": "3000000"}


def sanitize(only):
    tools = [word for word in only if word.endswith("check")] or ["memcheck", "racecheck"]
    ops = [word for word in only if not word.endswith("check")] or [*OPS, *([] if only else ["wgmma"])]
    if not output(["compute-sanitizer", "--version"]):
        return fail("compute-sanitizer", "not found: load the CUDA module, or put its folder on the PATH")

    def one(tool, op):
        more = {"LONGHAUL_DEVICE_EXACT": "1", "LONGHAUL_TEST_OPS": op}
        more |= {"LONGHAUL_TEST_BELOW": SMALL[tool]} if tool in SMALL else {}
        program, test = ("wgmma", WARPGROUPS[0]) if op == "wgmma" else ("device", PER_OP[0])
        under = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", "--print-limit", "10"]
        result = one_test(program, test, 170, more, f"{tool} {op}", under=under)
        said = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (.*)", result.text)
        # Accesses outside of memory, and races, are printed as they are found, also by a process that is killed.
        found = len(re.findall(r"========= (?:Invalid|Error|Warning|Race|Uninitialized|Barrier)", result.text))
        if result.hung and not found:
            return tool, op, result, "no error until then"
        if not result.ok and result.status != "skipped":
            fail(result.name, f"{result.status}  {said[-1] if said else problem(result.text)}")
        return tool, op, result, said[-1] if said else f"{found} so far"

    found = together([lambda t=t, o=o: one(t, o) for t in tools for o in ops], 1 if REHEARSAL else 5)
    print()
    for tool, op, result, said in found:
        print(f"{tool:10} {op:16} {result.status:12} {result.seconds:6.0f} s  {said}")
    return None
