//! Charts as PNG, reports as HTML and Markdown, and runs as files of experiment trackers. This crate does not depend on tensors or models.

#![forbid(unsafe_code)]

pub mod axis;
pub mod canvas;
pub mod colours;
pub mod document;
pub mod export;
pub mod panel;
