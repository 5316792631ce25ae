//! Configurations of transformers beside the files of goldens.

use serde_json::Value as Json;
use std::fs;
use tasks::language::SftModel;

/// The config.json of a case in a file of tests/golden, or the parameters of a rope type.
pub fn json_in(file: &str, case: &str) -> Json {
    let path = format!("{}/../../tests/golden/{file}", env!("CARGO_MANIFEST_DIR"));
    let all: Json = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    all[case].clone()
}

/// What [`SftModel::read`] makes of this config.json.
pub fn read(config: &Json) -> unix::Result<SftModel> {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    SftModel::read(folder.path())
}
