//! Safetensors shards and their index.

use super::{data_set, run};
use serde_json::Value;
use std::fs;
use std::path::Path;

#[test]
fn an_index_describes_shards_and_detects_changes() {
    let folder = data_set();
    let folder = folder.path();
    let import = |files: &[&str]| {
        let words = ["--format", "safetensors", "--shard", "4", "-o", "shards", "--json"];
        let output = run(folder, "", &[&["import"], files, &words].concat());
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        // In the order of the given names, then of their parts.
        let listed: Vec<Value> = output.records().iter().map(|shard| shard["file"].clone()).collect();
        let stems = files.iter().map(|file| Path::new(file).file_stem().unwrap().to_str().unwrap());
        let named =
            stems.flat_map(|stem| (0..3).map(move |i| format!("shards/{stem}-{i:05}.safetensors")));
        assert_eq!(listed, named.collect::<Vec<_>>());
        let text = fs::read_to_string(folder.join("shards/index.json")).unwrap();
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let [a, b] = ["raw/1D_Burgers_Sols_Nu0.01.hdf5", "raw/1D_Burgers_Sols_Nu0.1.hdf5"];
    let half = import(&[a]);
    import(&[b, a]);
    let index = import(&[a, b]);
    assert_eq!((&half["trajectories"], &index["trajectories"]), (&10.into(), &20.into()));
    let shards = index["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 6);
    assert_eq!(&shards[..3], half["shards"].as_array().unwrap(), "what was there is kept");
    for shard in shards {
        let path = folder.join("shards").join(shard["file"].as_str().unwrap());
        assert_eq!(shard["blake3"], unix::publish::hash_file(&path).unwrap());
        assert_eq!(shard["bytes"], fs::metadata(&path).unwrap().len());
        assert_eq!((&shard["frames"], shard["grid"][0].as_u64()), (&5.into(), Some(32)));
        // Compared with another way to read the values.
        let first =
            run(folder, "", &["show", path.to_str().unwrap(), "--sample", "0", "--json"]).records();
        let least = first.iter().filter_map(|frame| frame["min"].as_f64()).fold(f64::MAX, f64::min);
        let statistics = &shard["statistics"][0];
        assert!(statistics["min"].as_f64().unwrap() <= least, "{statistics}");
        let count = shard["trajectories"].as_u64().unwrap() * 5 * 32;
        assert_eq!(statistics["count"].as_u64(), Some(count));
    }

    // An index stands for its shards.
    let listed = run(folder, "shards/index.json\n", &["ls", "-", "--json"]).records();
    assert_eq!(listed.len(), 6);
    assert!(listed.iter().all(|record| record["reads"] == "direct"), "{listed:?}");
    let shown = run(folder, "", &["show", "shards/index.json", "--json"]).records();
    assert_eq!(shown[0]["shards"].as_array().unwrap().len(), 6);
    let frames = |file: &str, sample| {
        let output = run(folder, "", &["show", file, "--sample", sample, "--json"]);
        assert_eq!(output.status, Some(0), "{}", output.stderr);
        output.stdout
    };
    let fourth = format!("shards/{}", shards[3]["file"].as_str().unwrap());
    for (sample, of_shard) in [("10", "0"), ("13", "3")] {
        assert_eq!(frames("shards/index.json", sample), frames(&fourth, of_shard), "{sample}");
    }
    let plot =
        |file, sample| run(folder, "", &["plot", file, "--sample", sample, "-o", "plot.png"]);
    assert_eq!(plot("shards/index.json", "19").status, Some(0));
    for (file, sample, words) in [
        ("shards/index.json", "20", "no trajectory 20, there are 20"),
        ("split.json", "0", "name a data file"),
    ] {
        let show = run(folder, "", &["show", file, "--sample", sample]);
        for output in [show, plot(file, sample)] {
            assert_eq!(output.status, Some(2), "{}", output.stderr);
            assert!(output.stderr.contains(words), "{}", output.stderr);
        }
    }
    assert_eq!(run(folder, "", &["show", "split.json"]).status, Some(2));
    let split = run(folder, "", &["split", "shards/index.json", "-o", "of-shards.json"]);
    assert_eq!(split.status, Some(0), "{}", split.stderr);
    let check = || run(folder, "", &["check", "shards/index.json", "--json"]);
    assert_eq!(check().status, Some(0), "{}", check().stdout);

    // A changed value, a truncated shard, a missing shard.
    let path = |i: usize| folder.join("shards").join(shards[i]["file"].as_str().unwrap());
    let mut bytes = fs::read(path(1)).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 1;
    fs::write(path(1), &bytes).unwrap();
    let whole = fs::read(path(2)).unwrap();
    fs::write(path(2), &whole[..whole.len() - 8]).unwrap();
    fs::remove_file(path(4)).unwrap();
    let output = check();
    assert_eq!(output.status, Some(65), "{}", output.stdout);
    let faults = output.records();
    for (shard, kind) in [(1, "changed"), (2, "changed"), (2, "unreadable"), (4, "missing")] {
        let name = shards[shard]["file"].as_str().unwrap();
        let named = |fault: &&Value| {
            fault["kind"] == kind && fault["file"].as_str().unwrap().ends_with(name)
        };
        assert_eq!(faults.iter().filter(named).count(), 1, "{name} {kind}: {faults:?}");
    }
    assert_eq!(faults.len(), 4, "{faults:?}");

    // A file that is not an index of fields is refused as such.
    fs::write(folder.join("shards/index.json"), "{}").unwrap();
    let output = run(folder, "", &["import", a, "--format", "safetensors", "-o", "shards"]);
    assert_eq!(output.status, Some(65), "{}", output.stderr);
    assert!(output.stderr.contains("index.json"), "{}", output.stderr);
}
