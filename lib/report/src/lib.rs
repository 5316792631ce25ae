//! Charts of runs in a terminal and as PNG and SVG, and reports as HTML and Markdown. This crate does not depend on
//! tensors or models.

#![forbid(unsafe_code)]

pub mod axis;
#[cfg(feature = "pictures")]
pub mod canvas;
pub mod chart;
#[cfg(feature = "pictures")]
pub mod colours;
#[cfg(feature = "pictures")]
pub mod document;
pub mod history;
#[cfg(feature = "pictures")]
pub mod panel;
#[cfg(feature = "pictures")]
pub mod picture;
pub mod terminal;
pub mod watch;
