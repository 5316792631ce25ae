"""Reads exports with the tools that they are for."""

import json
import pathlib
import subprocess
import sys

TOOLS = pathlib.Path(sys.executable).parent


def tool(*words, **options):
    """Runs a program of this virtual environment; returns its stdout."""
    command = [str(TOOLS / words[0]), *map(str, words[1:])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}"
    return done.stdout


def events(folder):
    """What TensorBoard shows of a folder with an event file: scalars by tag as (step, value), texts, images by tag, and
    the content of the plugin hparams."""
    from tensorboard.backend.event_processing import event_accumulator
    from tensorboard.plugins.hparams import plugin_data_pb2

    everything = {kind: 0 for kind in ("scalars", "tensors", "images")}
    found = event_accumulator.EventAccumulator(str(folder), size_guidance=everything).Reload()
    tags = found.Tags()
    scalars = {tag: [(e.step, e.value) for e in found.Scalars(tag)] for tag in tags["scalars"]}
    texts = {
        tag: found.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in found.PluginTagToContent("text")
    }
    images = {tag: found.Images(tag) for tag in tags["images"]}
    hparams = {}
    for tag, content in found.PluginTagToContent("hparams").items():
        hparams[tag] = plugin_data_pb2.HParamsPluginData.FromString(content)
    return scalars, texts, images, hparams


def wandb_records(folder):
    """The records of the offline runs below a folder, as `wandb leet inspect` reads them."""
    (file,) = pathlib.Path(folder).glob("wandb/offline-run-*/run-*.wandb")
    return file, [json.loads(line) for line in tool("wandb", "leet", "inspect", "--json", file).splitlines()]


def history(records):
    """The history among such records: a dictionary for each step."""
    return [record["history"]["item"] for record in records if record["type"] == "history"]
