"""Makes files with torch.save, a list of their tensors, and files whose pickles refer to more than tensors.

    python3 tests/golden/torch/files.py     (made with torch 2.15, reads the same since 1.6)

Writes *.pt and values.json (file name -> tensor -> shape and values) to its own folder.
"""

import collections
import json
import os
import pathlib
import subprocess

import torch

HERE = pathlib.Path(__file__).parent


def number(*shape, dtype=torch.float32, start=0.0):
    count = int(torch.tensor(shape).prod()) if shape else 1
    return (torch.arange(count, dtype=torch.float64) * 0.375 + start).reshape(shape).to(dtype)


class Run:
    """Runs a command where it is unpickled."""

    def __init__(self, function, *arguments):
        self.what = (function, arguments)

    def __reduce__(self):
        return self.what


def flat(value, name=""):
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for key, item in enumerate(value):
            yield from flat(item, f"{name}.{key}" if name else str(key))


torch.manual_seed(1)
layer = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
base = number(4, 6)
good = {
    "state_dict": layer.state_dict(),
    "dtypes": {
        str(dtype).removeprefix("torch."): number(2, 3, dtype=dtype, start=1.0)
        for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
                      torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
    },
    "views": {
        "whole": base,
        "transposed": base.t(),
        "columns": base[1:3, ::2],
        "expanded": base[0, :1].expand(3),
        "scalar": base[2, 5],
        "empty": base[:0],
    },
    "nested": {
        "epoch": 3, "rate": 1e-3, "note": "ν", "big": 10**30, "done": True, "none": None,
        "model": collections.OrderedDict(w=number(2, 2), p=torch.nn.Parameter(number(3))),
        "list": [number(1), (number(2), {"x": number(1, 1)})], "size": torch.Size([2, 3]),
    },
}
values = {}
for name, content in good.items():
    torch.save(content, HERE / f"{name}.pt")
    values[name] = {
        key: {"shape": list(t.shape), "values": t.double().flatten().tolist()} for key, t in flat(content)
    }
torch.save(good["nested"], HERE / "protocol4.pt", pickle_protocol=4)
values["protocol4"] = values["nested"]
(HERE / "values.json").write_text(json.dumps(values) + "\n")

touch = "touch ran-by-the-pickle"
bad = {
    "system": Run(os.system, touch),
    "popen": {"w": number(2), "x": Run(subprocess.Popen, ["sh", "-c", touch])},
    "eval": Run(eval, f"__import__('os').system({touch!r})"),
    "getattr": Run(getattr, "text", "upper"),
    "module": torch.nn.Linear(2, 2),
    "set": {"names": {1, 2}},
}
for name, content in bad.items():
    torch.save(content, HERE / f"refused-{name}.pt")
torch.save(number(3), HERE / "refused-legacy.pt", _use_new_zipfile_serialization=False)
