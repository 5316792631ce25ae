//! Charts of runs in a terminal and as PNG and SVG, reports as HTML and Markdown, and runs as files of experiment
//! trackers. This crate does not depend on tensors or models.

#![forbid(unsafe_code)]

pub mod axis;
#[cfg(feature = "pictures")]
pub mod canvas;
pub mod chart;
#[cfg(feature = "pictures")]
pub mod colours;
#[cfg(feature = "pictures")]
pub mod document;
#[cfg(feature = "export")]
pub mod export;
pub mod history;
#[cfg(feature = "pictures")]
pub mod panel;
#[cfg(feature = "pictures")]
pub mod picture;
pub mod terminal;
pub mod watch;
