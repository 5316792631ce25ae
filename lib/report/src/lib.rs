//! Charts of runs in a terminal and as PNG and SVG, reports as HTML and Markdown, and export to experiment trackers.
//! This crate does not depend on tensors or models.

#![forbid(unsafe_code)]

pub mod axis;
pub mod canvas;
pub mod chart;
pub mod colours;
pub mod document;
pub mod evaluation;
#[cfg(feature = "export")]
pub mod export;
pub mod history;
pub mod panel;
pub mod picture;
pub mod terminal;
pub mod watch;
