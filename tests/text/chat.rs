//! Conversations, from a file to the tokens that a loss counts.

use crate::records::{done, refused};
use serde_json::json;
use std::fs;
use std::path::Path;

#[test]
fn conversations_become_tokens() {
    let temporary = tempfile::tempdir().unwrap();
    let folder = temporary.path();
    let message = |role: &str, content: String| json!({"role": role, "content": content});
    let lines = (0..30).map(|i| {
        let messages = [
            message("user", format!("{i} + 1?")),
            message("assistant", (i + 1).to_string()),
            message("user", "and one more?".into()),
            message("assistant", (i + 2).to_string()),
        ];
        let count = if i % 3 == 0 { 4 } else { 2 };
        json!({"messages": messages[..count], "id": i}).to_string() + "\n"
    });
    fs::write(folder.join("chat.jsonl"), lines.collect::<String>()).unwrap();
    fs::write(folder.join("columns.yaml"), "{messages: messages, id: id}").unwrap();
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("lib/data/tests/golden/chat");
    let tokenize = |model: &str, options: &str| {
        let model = models.join(model);
        format!("ds-prep tokenize split.json --tokenizer {} {options}", model.display())
    };
    let import = "ds-prep import chat.jsonl --columns columns.yaml -o";
    done(folder, &format!("{import} store; ds-prep split store --seed 1 -o split.json"));
    let told = |model: &str, options: &str| done(folder, &tokenize(model, options)).stderr;
    // Qwen3 renders the last answer with an empty thought, and no longer once the conversation goes on.
    let stderr = told("qwen3", "--max-length 96 -o tokens");
    assert!(stderr.contains("renders 10 turns of assistants in another way"), "{stderr}");
    assert!(!told("qwen2", "--max-length 96 -o of-qwen2").contains("in another way"));
    let stderr = told("llama3", "--max-length 96 --loss-on all -o of-llama");
    assert!(!stderr.contains("truncated"), "{stderr}");
    assert!(told("llama3", "--max-length 40 -o cut").contains("10 records have more than 40"));

    // Roles are part of the text that a vocabulary is learned from.
    done(folder, "ds-prep vocabulary split.json --size 300 -o learned");
    let learned = fs::read(folder.join("learned/tokenizer.json")).unwrap();
    let learned: serde_json::Value = serde_json::from_slice(&learned).unwrap();
    for role in ["user", "assistant"] {
        assert!(learned["model"]["vocab"][role].is_u64(), "{role} is several tokens");
    }

    refused(folder, &tokenize("qwen3", "--stride 4 -o x"), 2, "no effect on conversations");
    refused(folder, &tokenize("qwen3", "--max-length 8 -o x"), 65, "raise --max-length");
    refused(folder, "ds-prep tokenize split.json --tokenizer . -o x", 66, "no tokenizer.json");
    let mut text = fs::read_to_string(folder.join("chat.jsonl")).unwrap();
    text = text.replacen("\"assistant\"", "\"model\"", 1);
    fs::write(folder.join("chat.jsonl"), text).unwrap();
    refused(
        folder,
        &format!("{import} x"),
        65,
        "chat.jsonl: line 1: message 1: the role \"model\"",
    );
    fs::write(folder.join("columns.yaml"), "{messages: messages, label: id}").unwrap();
    refused(folder, &format!("{import} x"), 78, "label: has no effect on conversations");
}
