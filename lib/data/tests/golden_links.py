#!/usr/bin/env python3
"""Makes tests/golden/links/: files whose fields are external links to other.h5, which does not exist.

Written by h5py 3.16.0 (HDF5 2.0). Run it in lib/data/tests/.
"""

import os

import h5py
import numpy

FOLDER = "golden/links"


def file(name):
    made = h5py.File(os.path.join(FOLDER, name), "w", libver=("earliest", "v110"))
    made["x-coordinate"] = numpy.arange(8, dtype="f4")
    made["t-coordinate"] = numpy.arange(4, dtype="f4")
    return made


os.makedirs(FOLDER, exist_ok=True)
with file("tensor.h5") as made:
    made["tensor"] = h5py.ExternalLink("other.h5", "tensor")
with file("group.h5") as made:
    made["0000/data"] = h5py.ExternalLink("other.h5", "tensor")
