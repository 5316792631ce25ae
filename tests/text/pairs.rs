//! Texts with vectors, as users prepare them: from generated sentences to tokens, and what is refused on the way.

use crate::records::{done, refused};
use serde_json::Value;
use std::fs;

#[test]
fn sentences_with_vectors_become_tokens_and_tests_do_not_leak() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let generated = done(
        folder,
        "ds-prep gen sentences -o data --samples 800 --seed 3 --test 50 --paired 400 --json",
    );
    let row: Value = serde_json::from_str(generated.stdout.trim()).unwrap();
    assert_eq!((&row["words"], &row["dimensions"]), (&173.into(), &32.into()), "{row}");
    assert!((row["entropy"].as_f64().unwrap() - 6.32).abs() < 0.01, "{row}");
    done(
        folder,
        "ds-prep import data/pairs.jsonl --columns data/columns.yaml --vectors data/pairs.npy -o pairs
         ds-prep import data/test.jsonl --columns data/columns.yaml --vectors data/test.npy -o test
         ds-prep import data/texts.jsonl --columns data/columns.yaml -o texts
         ds-prep import --vectors data/vectors.npy -o vectors
         ds-prep split pairs --validation 10% --test-from test --seed 1 -o split.json
         ds-prep split vectors --validation 10% --test 0 -o alone.json
         ds-prep check split.json pairs vectors
         ds-prep audit split.json --near 0
         ds-prep vocabulary split.json -o tokenizer
         ds-prep tokenize split.json --tokenizer tokenizer --max-length 24 -o tokens
         ds-prep tokenize alone.json --tokenizer tokenizer --max-length 24 -o alone",
    );
    let listed = done(folder, "ds-prep ls --json pairs vectors tokens alone").stdout;
    let rows: Vec<Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(rows.iter().all(|row| row["vector"] == 32), "{listed}");
    let test = rows.iter().find(|row| row["split"] == "test").unwrap();
    assert_eq!((&test["records"], &test["unknown"]), (&1050.into(), &0.into()), "{test}");
    let of_train = |tokens: &str| -> u64 {
        let listed = done(folder, &format!("ds-prep ls --json {tokens}")).stdout;
        let mut rows = listed.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        rows.find(|row| row["split"] == "train").unwrap()["tokens"].as_u64().unwrap()
    };
    assert!(of_train("tokens") > 360 * 11 && of_train("alone") == 0);
    let shown = done(folder, "ds-prep show --json pairs --sample 7").stdout;
    let record: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(record["vector"].as_array().unwrap().len(), 32, "{record}");
    let stats = done(folder, "ds-prep stats --json split.json").stdout;
    let rows: Vec<Value> = stats.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((rows.len(), &rows[31]["of"]), (32, &"vector 31".into()), "{stats}");
    assert!(rows.iter().all(|row| (row["std"].as_f64().unwrap() - 1.0).abs() < 0.2), "{stats}");

    // Texts that are in training as well.
    done(
        folder,
        "head -n 40 data/pairs.jsonl > some.jsonl
         ds-prep import some.jsonl --columns data/columns.yaml -o some
         ds-prep import data/pairs.jsonl --columns data/columns.yaml -o all
         ds-prep split all --test 0 --validation 0 --train 100% -o all.json
         ds-prep split some --test 100% --validation 0 --train 0 -o some.json",
    );
    refused(folder, "ds-prep audit all.json some.json --near 0", 1, "same group");
    refused(folder, "ds-prep split pairs texts -o x.json", 65, "vectors of 32 numbers");
    let counts =
        "ds-prep import some.jsonl --columns data/columns.yaml --vectors data/pairs.npy -o x";
    refused(folder, counts, 65, "400 vectors for 40 records");
    refused(folder, "ds-prep import some.jsonl --vectors data/pairs.npy -o x", 2, "--columns");
    refused(
        folder,
        "ds-prep import --vectors data/pairs.npy --axes nc -o x",
        2,
        "--axes: no effect on vectors alone",
    );
    refused(folder, "ds-prep gen sentences -o data --samples 9", 73, "already exists");
    refused(folder, "ds-prep gen criteria -o y --samples 9 --paired 3", 2, "--paired: no effect");

    // By id, with partners missing on both sides.
    let ids: String = (100..500).map(|i| format!("pair-{i:06}\n")).collect();
    fs::write(folder.join("ids.txt"), ids).unwrap();
    let import = "ds-prep import data/pairs.jsonl --columns data/columns.yaml --vectors data/pairs.npy \
                  --vector-ids ids.txt -o by-id";
    refused(folder, import, 65, "100 texts have no vector, and 100 vectors no text");
    let dropped = done(folder, &format!("{import} --unpaired drop"));
    assert!(dropped.stderr.contains("100 texts without a vector"), "{}", dropped.stderr);
    let chunked = "ds-prep import data/pairs.jsonl --columns data/columns.yaml --chunk 40 --overlap 10 -o chunks";
    done(folder, chunked);
    let listed = done(folder, "ds-prep show --json chunks --sample 1").stdout;
    let record: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(record["id"], "pair-000000#1", "{record}");
}
