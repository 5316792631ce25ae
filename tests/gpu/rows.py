"""Rows of opcheck at large sizes, beside a model of the card and the card's own rates."""
import os

from machine import model, results, save_results
from steps import BIN, DEVICE, REHEARSAL, check, fail, left, run, say, shown

# Rows with more operations are left out: they take long and say nothing new.
BELOW = {"bf16": 10**12, "f16": 10**12, "tf32": 15 * 10**10, "f32": 3 * 10**11}
# Seconds without a row after which it counts as hung: at most that long does compiling or drawing inputs take.
SILENCE = int(os.environ.get("SILENCE", 20 if REHEARSAL else 60))
products = []


def opcheck(element, *more, limit=120, name=None, note=None, modelled=True):
    """The rows, which are also added to the results. A row that hangs costs its own time and the other rows of its op; those
    after them are measured."""
    size = ["--below", "20000"] if REHEARSAL else ["--large", "--below", str(BELOW[element])]
    words = [BIN / "opcheck", "--json", "--announce", "--device", DEVICE, "--element", element, *size, *more]
    words += model() if modelled and not REHEARSAL else []
    name = name or " ".join(["opcheck", element, *more])
    label = {"part": "large", "element": element, "turn": 1, **(note or {})}
    rows, again, ok = [], [], True
    while True:
        result = run(name + (f" without {again[-1]}" if again else ""), [*words, *again], limit, silence=SILENCE)
        rows += [row for row in result.json if "name" in row]
        note_product(element, result.json)
        ok = ok and result.ok
        announced = [row for row in result.json if "next" in row]
        if not result.hung or not announced or left() < 10:
            break
        hung = announced[-1]
        rows.append({"name": hung["next"], "inputs": hung["inputs"], "failed": result.status})
        again += ["--from", str(hung["row"]), "--without", hung["next"]]
    broken = [row for row in rows if row.get("failed")]
    for row in broken:
        fail(f"{name}: {row['name']} {row['inputs']}", row["failed"])
    if not any(row.get("failed") for row in result.json):
        check(result)
    results["rows"] += [{**label, **row} for row in rows]
    save_results()
    return ok, [row for row in rows if "forward_us" in row or "forward_modelled_us" in row]


def note_product(element, rows):
    most = results.get("ceilings", {}).get(f"{element}_gflop_s")
    for rate in [row["product_gflop_s"] for row in rows if "product_gflop_s" in row]:
        products.append(f"{element} {rate / 1e3:.1f}" + (f" ({rate / most:.2f} of PyTorch's)" if most else ""))


def of_card(row, way, element):
    """The larger of bytes and operations of a row, as a fraction of the card's rates."""
    rates = results.get("ceilings", {})
    bounds = [(f"{way}_gb_s", "copy_gb_s"), (f"{way}_gflop_s", f"{element}_gflop_s")]
    parts = [(row.get(key), rates.get(most)) for key, most in bounds]
    return max((have / most for have, most in parts if have and most), default=None)


def ratio(a, b):
    return a / b if a and b else None


def compare_with_model(rows):
    """Measured and modelled microseconds; `x` is measured over modelled, `card` the fraction of the card's rate."""
    columns = f"{'fwd us':>7} {'model':>7} {'x':>5} {'card':>5}"
    print(f"\n{'dtype':5} {'op':13} {'inputs':34} {columns} | {columns.replace(' fwd', 'both')}")
    for element, row in rows:
        both, forward_model = row.get("both_us"), row.get("forward_modelled_us")
        both_model = forward_model + row["backward_modelled_us"] if forward_model is not None else None
        cells = []
        for way, time, model_time in (("forward", row.get("forward_us"), forward_model), ("both", both, both_model)):
            cells += [shown(time), shown(model_time), shown(ratio(time, model_time), 5), shown(of_card(row, way, element), 5, 2), "|"]
        print(f"{element:5} {row['name'][:13]:13} {row['inputs'][:34]:34} " + " ".join(cells[:-1]))


def print_products():
    if products:
        print("products of 8192 x 8192 x 8192, TFLOP/s: " + ", ".join(dict.fromkeys(products)))
    else:
        say("no product was measured")
